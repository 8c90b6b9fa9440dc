"""What counts as recovered on a degraded device: against the original, and against what its roof left."""

import contextlib
import gc
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

import degraded
import degraded_gpu
import degraded_points
from degraded_page import page

from opforge.machine import descriptors
from opforge.registry import load

H200 = descriptors()["nvidia-h200"]

LABELS = [{"tile": 1}, {"tile": 2}, {"tile": 4}]


def told(seconds: dict, roof_s: float, refused: dict | None = None) -> dict:
    best = int(min(seconds, key=lambda place: seconds[place])) if seconds else None
    now = {"seconds": seconds, "roof_s": roof_s, "best": best, "refused": refused or {}}
    original = {"seconds": {"0": 1.0, "1": 2.0, "2": 3.0}, "roof_s": 0.9, "best": 0, "refused": {}}
    task = {"labels": LABELS, "roof": "a <copy>", "conditions": {"original": original, "less": now}}
    words = {"original": "all", "less": "<b>half</b>"}
    return {"device": "some-device", "day": "2026-01-01", "conditions": words, "tasks": {"kernel": task}}


def test_where_the_roof_kept_eighty_percent_so_must_the_kernel():
    """The old choice lost more than half of its speed; another one keeps 90 %."""
    (row,) = degraded.judged(told({"0": 2.5, "1": 1.1, "2": 3.0}, 0.9))
    assert row["enough"] and row["new_choice"] == {"tile": 2}
    assert abs(row["old_recovery"] - 0.4) < 1e-9 and abs(row["recovery"] - 1 / 1.1) < 1e-9
    assert not degraded.judged(told({"0": 2.5, "1": 1.3}, 0.9))[0]["enough"]


def test_where_the_roof_fell_further_what_it_left_is_asked():
    """Half the roof: half the speed is all there is, and 0.4 is not 95 % of it."""
    assert degraded.judged(told({"0": 2.05}, 1.8))[0]["enough"]
    (row,) = degraded.judged(told({"0": 2.5}, 1.8))
    assert not row["enough"] and abs(row["of_what_is_left"] - 0.8) < 1e-9


def test_an_old_choice_that_no_longer_runs_is_said_and_the_search_goes_on():
    """A cap on shared memory refuses the old winner: there is no time of it, and no 0.0 either."""
    found = told({"1": 1.1}, 0.9, {"0": "more shared memory than there is"})
    (row,) = degraded.judged(found)
    assert row["old_s"] is None and row["old_refused"] and row["searched"] == 1.0
    drawn = page(found, [row])
    assert "refused" in drawn and "&lt;copy&gt;" in drawn and "<b>half</b>" not in drawn


def test_softmax_is_tuned_again_among_all_that_the_registry_has():
    """An H200 whose bandwidth others take was left at .91 of what its copy kept: kernels that read a row once were no
    candidates.
    """
    tasks = {task.operator: task for task in degraded_points.tasks()}
    points = degraded_points.candidates_of(tasks["softmax"], H200)
    assert {point.label["kernel"] for point in points} == {item.name for item in load().implementations("softmax")}
    near = [point for point in points if point.implementation.name == "cuda_slices"]
    default = near[0].implementation.default
    assert len(near) > 20 and near[0].config == default
    assert max(degraded_points.steps(point.config, default) for point in near) == degraded_points.NEAR
    assert len({tuple(sorted(point.label.items())) for point in points}) == len(points)
    product = degraded_points.candidates_of(tasks["matmul"], H200)
    assert {point.implementation.name for point in product} == {"triton_tiled"}


def test_a_short_search_goes_over_kernels_with_parameters_of_their_own():
    labels = [{"kernel": "a", "tile": 1}, {"kernel": "b", "threads": 128, "held": 1}, {"kernel": "a", "tile": 2}]
    assert len({config.values for config in degraded_points.of_one_form(labels)}) == 3
    assert degraded.search(labels, {"0": 1.0, "1": 2.0, "2": 3.0}, {"0": 3.0, "1": 1.0}) == 1.0


def test_nothing_that_runs_gives_no_row():
    """No candidate left: there is no speed to judge, and the page says so by its absence."""
    assert degraded.judged(told({}, 0.9, {"0": "broken", "1": "broken", "2": "broken"})) == []


def test_what_a_captured_graph_reads_and_writes_lives_as_long_as_it(monkeypatch):
    """A graph keeps addresses alone. Inputs and outputs were let go with the task that made them, and replays in the
    first condition ended in an illegal memory access on an H200.
    """
    event = SimpleNamespace(record=lambda stream: None, synchronize=lambda: None, elapsed_time=lambda other: 1.0)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: event)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def prepared():
        copies, out = [[torch.ones(2)], [torch.ones(2)]], torch.empty(2)
        captured = degraded_gpu.capture(lambda given: out.copy_(given[0]), copies, None)
        return captured, [weakref.ref(tensor) for tensor in (copies[0][0], copies[1][0], out)]

    captured, alive = prepared()
    gc.collect()
    assert captured.calls == 1 and all(tensor() is not None for tensor in alive)
    del captured
    gc.collect()
    assert all(tensor() is None for tensor in alive)
