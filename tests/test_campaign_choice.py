"""The campaigns that a landing asks are those that notice what it changed, and some of the others in turn."""

import ast
import subprocess

import pytest

from campaign_choice import ROOT, base_of_change, changed_files, changed_tests, choose, graph_of, nearness

# the graph takes seconds: one worker draws it for all
pytestmark = pytest.mark.xdist_group("campaign_choice")
MARKS = {"campaign", "offline", "first_only"}


def marks(node):
    return {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)} & MARKS


@pytest.fixture(scope="module")
def campaigns():
    """Every test of this repository that is or has a campaign, without its parameters."""
    found = []
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        whole = any(isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node) and marks(node) for node in body)
        found += [
            f"tests/{path.name}::{node.name}"
            for node in body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
            if whole or any(map(marks, node.decorator_list))
        ]
    return found


@pytest.fixture(scope="module")
def graph():
    return graph_of()


@pytest.mark.parametrize(
    ("changed", "noticed_by"),
    [
        ("src/opforge/device/include/opforge/attention/wgmma_backward.h", "test_attention_backward_emulated.py::"),
        ("src/opforge/device/include/opforge/attention/wgmma_fp8.h", "test_attention_fp8_emulated.py::"),
        ("src/opforge/device/include/opforge/gemm/wgmma/sink.h", "test_wgmma_emulated.py::"),
        ("src/opforge/tuning/resume.py", "test_resume.py::"),
        ("src/opforge/forge/write/ascendc_file.py", "test_ascendc.py::"),
        ("src/opforge/inspect/offline.py", "test_inspect.py::"),
        ("scripts/trust_parts.py", "test_trust.py::test_measured_figures"),
        ("tests/redteam/cheats.py", "test_redteam.py::"),
        ("src/opforge/ops/functional.py", "test_functional.py::test_all_of_pytorchs_samples_on_kernels"),
        ("src/opforge/ops/norm/rmsnorm_backward/cuda_ring.cu", "test_norm_backward_ring.py::"),
    ],
)
def test_a_planted_change_is_asked_by_the_campaign_that_notices_it(graph, campaigns, changed, noticed_by):
    """Chosen for being near, whatever the turn: a change that its own campaign does not ask lands unasked."""
    assert (ROOT / changed).is_file(), f"{changed} has moved: name another file of its kind"
    near = nearness(graph, [changed], campaigns)
    for turn in ("one commit", "another"):
        choice = choose(campaigns, near, {}, turn)
        assert any(test.startswith(f"tests/{noticed_by}") for test in choice.chosen[: choice.reached])


def test_the_nearest_come_first_the_others_in_turn_and_seconds_bound_both():
    """What a change does not reach is asked too, sooner or later, and a landing of everything takes no longer."""
    tests = [f"tests/test_a.py::test_{number}" for number in range(90)]
    near = {tests[5]: (2, False, 10), tests[6]: (1, True, 50), tests[7]: (1, True, 9)}
    choice = choose(tests, near, dict.fromkeys(tests, 2.0), "a", budget_s=100.0)
    assert choice.chosen[:3] == (tests[7], tests[6], tests[5]) and choice.reached == 3
    assert choice.seconds == 64.0 and len(choice.chosen) == 32
    assert set(choice.chosen) | set(choice.left) == set(tests) and len(choice.chosen) + len(choice.left) == 90
    assert choice == choose(tests, near, dict.fromkeys(tests, 2.0), "a", budget_s=100.0)
    turns = [choose(tests, near, dict.fromkeys(tests, 2.0), f"commit {turn}", 100.0).chosen for turn in range(20)]
    assert set().union(*turns) == set(tests)
    everything = choose(tests, dict.fromkeys(tests, (1, True, 1)), dict.fromkeys(tests, 2.0), "a", budget_s=60.0)
    assert everything.seconds == 60.0 and everything.left


def test_an_edge_is_an_import_an_include_a_fixture_or_a_name(graph):
    """Each kind once: an edge that is not drawn is a campaign that is not asked."""
    assert "src/opforge/store/files.py" in graph["tests/kept_servers.py"]
    assert "tests/campaign_choice.py" in graph["tests/test_campaign_choice.py::graph"]
    assert "tests/test_campaign_choice.py::graph" in graph["tests/test_campaign_choice.py::" + EDGES]
    assert "src/opforge/device/include/opforge/abi/checks.h" in graph["src/opforge/device/include/opforge/device.h"]
    assert "tests/test_prints.py::record_of" in graph["tests/test_compile_history.py::" + BORROWS]
    assert "src/opforge/ops/rows/softmax/op.py" in graph["operator softmax"]
    assert "operator softmax" in graph["every operator"]


BORROWS = "test_what_inductor_takes_inside_of_calls_is_kept"
EDGES = test_an_edge_is_an_import_an_include_a_fixture_or_a_name.__name__


def test_the_change_is_what_differs_from_the_commit_that_was_landed_last(tmp_path, monkeypatch):
    """Named, or passed on this machine, or of the last day; a moved file and an untouched test have not changed."""
    monkeypatch.setenv("OPFORGE_KEPT", str(tmp_path / "kept"))
    monkeypatch.delenv("OPFORGE_CHANGE_BASE", raising=False)
    repository = tmp_path / "repository"
    (repository / "tests").mkdir(parents=True)

    def git(*words, day=1):
        moment = f"2026-01-{day:02}T00:00:00Z"
        environment = {"GIT_AUTHOR_DATE": moment, "GIT_COMMITTER_DATE": moment, "HOME": str(tmp_path)}
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True, env=environment)
        return done.stdout.strip()

    def commit(day):
        git("add", ".")
        git("commit", "-q", "-m", "m", day=day)
        return git("rev-parse", "HEAD")

    assert base_of_change(tmp_path) is None
    git("init", "-q")
    (repository / "a.py").write_text("A = 1\n" * 20)
    (repository / "tests" / "test_t.py").write_text("def test_one(): ...\ndef test_two(): ...\n")
    first = commit(1)
    git("mv", "a.py", "b.py")
    (repository / "c.py").write_text("")
    (repository / "tests" / "test_t.py").write_text("def test_one(): ...\n\n\ndef test_two(): pass\n")
    second = commit(8)
    assert base_of_change(repository) == first
    assert changed_files(repository, first) == {"c.py", "tests/test_t.py"}
    assert changed_tests(repository, first, "tests/test_t.py") == {"tests/test_t.py::test_two"}
    (repository / "d.py").write_text("")
    third = commit(8)
    assert base_of_change(repository) == first
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "passed").write_text(second)
    assert base_of_change(repository) == second
    monkeypatch.setenv("OPFORGE_CHANGE_BASE", first)
    assert base_of_change(repository) == first
    monkeypatch.setenv("OPFORGE_CHANGE_BASE", third)
    assert base_of_change(repository) == second
    assert not changed_files(repository, third)
