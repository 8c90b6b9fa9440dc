"""Results outside of git: what the tree keeps, and what is fetched by its sum."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def results():
    spec = importlib.util.spec_from_file_location("results", ROOT / "scripts" / "results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def root(tmp_path):
    """A tree with a table's input."""
    tree = tmp_path / "tree"
    (tree / "results").mkdir(parents=True)
    (tree / "results" / "manifest.json").write_text('{"kept": {}, "artefacts": {}}')
    (tree / "results" / "cpu.jsonl").write_text("one\n")
    (tree / "README.md").write_text("<!-- table: results/cpu.jsonl softmax -->\n<!-- end -->\n")
    return tree


def test_the_tree_keeps_what_its_manifest_says(results):
    """A renewed file that was committed without its sum, or beside the manifest, is noticed."""
    assert results.check(ROOT, results.tracked(ROOT)) == []


def test_a_changed_a_missing_and_a_stray_file_are_each_named(results, root):
    """The history of git grew by 100 MB of results that nobody looked at again."""
    data = root / "results" / "cpu.jsonl"
    (wrong,) = results.check(root, set())
    assert wrong == "results/cpu.jsonl is a table's input and not in the manifest: pack results/cpu.jsonl --keep tables"
    results.pack(root, data, None, keep="tables", renew="")
    assert results.check(root, {"results/cpu.jsonl"}) == []
    (stray,) = results.check(root, {"results/cpu.jsonl", "results/new.jsonl"})
    assert stray.startswith("results/new.jsonl is in git and not in the manifest")
    data.write_text("two\n")
    (changed,) = results.check(root, set())
    assert changed.startswith("results/cpu.jsonl has changed. Renewed: python scripts/results.py pack")
    data.unlink()
    (missing,) = results.check(root, set())
    assert missing == "results/cpu.jsonl is not there. Bring it back: git checkout -- results/cpu.jsonl"


@pytest.mark.parametrize("address", [str, lambda folder: folder.as_uri()])
def test_an_artefact_is_fetched_by_its_sum_and_by_no_other(results, root, tmp_path, address):
    """Whoever serves it may hold another file under that name."""
    made, shared = tmp_path / "slice.jsonl.xz", tmp_path / "shared"
    made.write_bytes(b"abc")
    results.pack(root, made, shared, keep="", renew="make gpu")
    sum_of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert [file.name for file in shared.iterdir()] == [sum_of_abc]
    assert json.loads((root / "results" / "manifest.json").read_text())["artefacts"]["slice.jsonl.xz"]["bytes"] == 3
    results.fetch(root, "slice.jsonl.xz", address(shared))
    here = root / "results" / "artefacts" / "slice.jsonl.xz"
    assert here.read_bytes() == b"abc"
    assert results.fetch(root, "slice.jsonl.xz", "nowhere").endswith("there already")
    here.unlink()
    (shared / sum_of_abc).write_bytes(b"abd")
    with pytest.raises(SystemExit, match=r"has another file under its sum\. Renew it: make gpu"):
        results.fetch(root, "slice.jsonl.xz", address(shared))
    (shared / sum_of_abc).unlink()
    with pytest.raises(SystemExit, match=r"does not have it .* Renew it: make gpu"):
        results.fetch(root, "slice.jsonl.xz", address(shared))
    assert not here.exists() and list(here.parent.iterdir()) == []
