"""The printed matrix of attention: what counts as valid, what a failure does to it, and a part of it for real."""

import argparse
import dataclasses
import fcntl
import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "attention_matrix.py"


@pytest.fixture(scope="module")
def matrix():
    spec = importlib.util.spec_from_file_location("attention_matrix", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def times(matrix):
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        return importlib.import_module("attention_matrix_times")
    finally:
        sys.path.remove(str(SCRIPT.parent))


def answer(matrix, verdict, implementation="one", dim="64", backend="cpp"):
    cell = matrix.Cell("causal", "GQA", dim, "bias", "forward")
    return matrix.Answer(cell, backend, implementation, "float32", verdict, "words of it", None, None, None, None)


def test_a_failure_outweighs_a_pass_and_a_pass_a_refusal(matrix):
    found = [answer(matrix, "Mismatch"), answer(matrix, "Pass", "two"), answer(matrix, "refused", dim="96")]
    assert matrix.shares(found) == [("cpp", 0, 1, 1)]
    assert matrix.shares(found[1:]) == [("cpp", 1, 1, 1)]
    baseline = [answer(matrix, "Inaccurate"), answer(matrix, "Pass", "two")]
    assert matrix.shares(baseline) == [("cpp", 1, 1, 0)]
    assert matrix.shares(baseline[:1]) == [("cpp", 0, 1, 0)]


def test_refusals_are_told_with_their_reason_and_number(matrix):
    found = [answer(matrix, "refused", dim=dim) for dim in ("64", "96")]
    words = matrix.text(found)
    assert "- 2 x one float32: words of it" in words and "refused" in words.splitlines()[2]
    assert "words of it" in matrix.page(found)


def test_drawn_lengths_are_the_edges(matrix):
    drawn = matrix.lengths_drawn(200, 1)
    assert {length % 128 for pair in drawn for length in pair} >= {1, 64, 127} and any(1 in pair for pair in drawn)
    assert sum(queries != keys for queries, keys in drawn) > 100


def test_what_is_not_in_a_definition_is_said(matrix):
    from opforge.registry import load

    registry = load([])
    operators = {name: registry.operator(name) for name in ("attention", "attention_varlen", "attention_decode")}
    said = matrix.missing(operators, matrix.Cell("varlen", "MHA", "64", "bias", "forward"))
    assert said == "attention_varlen has no bias"
    assert matrix.missing(operators, matrix.Cell("padding", "MHA", "64", "sinks", "forward")) is None


def test_a_time_is_told_with_its_cells_and_counted(matrix):
    timed = dataclasses.replace(answer(matrix, "Pass"), seconds=1e-3, flops=2e9, bytes=1e6)
    words = matrix.text([timed, answer(matrix, "Pass", dim="96")])
    assert "2/2 · 2 |" in words and "2 of 2 valid cells Pass (100.0%), 1 Pass and are timed (50.0%)" in words


def test_times_of_two_cards_are_told_apart(matrix):
    """A rate of one card is no rate of the other; where all are of one, nothing is said in each row."""
    timed = [
        dataclasses.replace(answer(matrix, "Pass", dim=dim), seconds=1e-3, flops=flops, bytes=1e6, card=card)
        for dim, flops, card in (
            ("64", 2e9, "NVIDIA H200"),
            ("96", 4e9, "NVIDIA H200"),
            ("128", 1e9, "NVIDIA H100 80GB HBM3"),
        )
    ]
    assert "3/3 · 2-4 (H200), 1 (H100) |" in matrix.text(timed) and "timed on NVIDIA H100" in matrix.page(timed)
    assert "2/2 · 2-4 |" in matrix.text(timed[:2])


def test_again_leaves_out_what_is_asked_for_alone(matrix):
    """Of a kernel that has changed neither verdict nor time may stay, and of the others both must."""
    found = [dataclasses.replace(answer(matrix, "Pass", name), seconds=1e-3, card="cpu") for name in ("one", "two")]
    axes = {"masks": ["causal"], "heads": ["GQA"], "dims": ["64"], "features": ["bias"], "directions": ["forward"]}
    asked = argparse.Namespace(**axes, part="1/1", backends=["cpp"], implementations=["one"], time=False)
    assert matrix.forgotten(found, asked) == found[1:]
    asked.time = True
    assert [item.seconds for item in matrix.forgotten(found, asked)] == [None, 1e-3]
    asked.directions = ["backward"]
    assert matrix.forgotten(found, asked) == found


def test_shares_are_all_cells_once_and_keep_kinds_of_heads_together(matrix):
    found = [
        matrix.Cell(mask, heads, dim, "plain", "forward")
        for mask in matrix.MASKS
        for heads in matrix.HEADS
        for dim in matrix.DIMS
    ]
    parts = [matrix.part_of(found, f"{place}/5") for place in range(1, 6)]
    assert sorted(map(str, found)) == sorted(str(cell) for part in parts for cell in part)
    assert all(len({(cell.mask, cell.dim) for cell in part}) * 3 == len(part) for part in parts)


def test_who_times_is_alone_and_who_makes_ready_is_not(times, tmp_path):
    path = tmp_path / "lock"
    with times.Device(path) as one, times.Device(path) as other, (tmp_path / "lock.b").open("w") as third:
        with one.shared(), other.shared(), pytest.raises(BlockingIOError):
            fcntl.flock(third, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with one.alone(), pytest.raises(BlockingIOError):
            fcntl.flock(third, fcntl.LOCK_SH | fcntl.LOCK_NB)
        with other.alone():
            pass


def test_of_a_backend_the_preferred_implementation_is_timed(matrix, times):
    found = [answer(matrix, "Pass", name) for name in ("third", "first", "second")] + [
        answer(matrix, "refused", "none")
    ]
    cells, rest = times.preferred(found, lambda _: {"first": 1, "second": 2, "third": 3})
    assert [item.implementation for chosen in cells.values() for item in chosen] == ["first"]
    assert sorted(item.implementation for item in rest) == ["none", "second", "third"]


def test_of_several_files_the_later_counts_and_a_time_is_kept(matrix):
    """A verification in parts and times in parts are read together, in any order of the last two."""
    plain = answer(matrix, "Pass")
    timed = dataclasses.replace(plain, seconds=1e-3, flops=2e9, bytes=1e6)
    assert matrix.merged([plain, timed, plain]) == [timed]
    wrong = dataclasses.replace(plain, verdict="Mismatch")
    assert matrix.merged([timed, wrong]) == [wrong]
    assert len(matrix.merged([plain, answer(matrix, "Pass", "two")])) == 2


def test_one_process_takes_a_group_of_cells(times, tmp_path):
    assert times.taken(tmp_path / "claims", "attention, 64") and not times.taken(tmp_path / "claims", "attention, 64")
    assert times.taken(tmp_path / "claims", "attention, 96") and times.taken(None, "attention, 64")


def test_what_cannot_be_timed_stays_beside_what_is(matrix, times):
    """Run as a script there are two modules: an answer of one is none of the other's. It ended a run on an H200."""
    turns = []
    ready = times.Ready(answer(matrix, "Pass"), lambda: turns.append(0), 1, times.TURNS_CALLED, None)
    foreign = object()
    found = times.with_times([foreign, ready], "cpu")
    assert found[0] is foreign and found[1].seconds is not None and len(turns) == times.TURNS_CALLED


@pytest.mark.campaign
def test_a_part_of_the_matrix_passes_here(tmp_path):
    """Every kind of mask once, both directions, by the definition in PyTorch."""
    kept = tmp_path / "matrix.json"
    command = [sys.executable, SCRIPT, "--dims", "64", "--heads", "GQA", "--features", "plain", "--backends", "torch"]
    done = subprocess.run([*command, "--device", "cpu", "--json", kept], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    answers = json.loads(kept.read_text())["answers"]
    assert {item["cell"]["mask"] for item in answers if item["verdict"] == "Pass"} >= {
        "full",
        "padding",
        "varlen",
        "paged",
    }
