"""Signals from outside: harm to a worker, or to what workers come from, is never booked on the kernel."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from opforge.core.evidence.verdict import Crash, Pass, Verdict
from opforge.registry import load
from opforge.runner import Isolated
from opforge.runner.parent.client import ForkedWorker
from opforge.runner.walls import senders
from opforge.timing import MeasurementFailed
from opforge.verify import EXACT, CaseCache, verify
from opforge.workbench import compare


@pytest.fixture(scope="module")
def host() -> Iterator[Isolated]:
    """One for all: PyTorch is imported once for each server that a test ends."""
    with Isolated() as isolated:
        yield isolated


def verified(host: Isolated, harm: Callable[[ForkedWorker], None], times: int) -> Verdict:
    """The verdict on relu in PyTorch, where `harm` is done to a worker in the middle of its first `times` runs."""
    registry = load()
    operator, implementation = registry.operator("relu"), registry.implementation("relu", "torch_eager")
    left = [times]
    plain = ForkedWorker._awaited

    def awaited(self: ForkedWorker, *given: object) -> object:
        if left[0] and self.arena_bytes:
            left[0] -= 1
            harm(self)
        return plain(self, *given)  # type: ignore[arg-type]

    ForkedWorker._awaited = awaited  # type: ignore[method-assign,assignment]
    try:
        cases = CaseCache(registry=registry, operator=operator, host=host, device="cpu")
        return verify(cases, implementation, "float32", cases=operator.cases[:2], effort=EXACT)
    finally:
        ForkedWorker._awaited = plain  # type: ignore[method-assign]


def kill(worker: ForkedWorker) -> None:
    os.kill(worker.pid, signal.SIGKILL)


def kill_server(worker: ForkedWorker) -> None:
    os.kill(worker.server.process.pid, signal.SIGKILL)
    worker.server.process.wait()


@pytest.mark.parametrize("harm", [kill, kill_server])
def test_an_honest_kernel_passes_after_one_signal(host: Isolated, harm: Callable[[ForkedWorker], None]) -> None:
    """Ten of twelve were called Crash or Broken; the note says what happened."""
    verdict = verified(host, harm, 1)
    assert isinstance(verdict, Pass), verdict
    (note,) = (statement for statement in verdict.statements if statement.name == "interrupted")
    assert "Right in a new worker" in note.detail


def test_a_kernel_that_dies_twice_has_a_verdict_that_names_the_senders(host: Isolated) -> None:
    """It may be the kernel itself, which sends such a signal every time."""
    verdict = verified(host, kill, 2)
    assert isinstance(verdict, Crash) and verdict.status == -9
    assert "sent by" in verdict.stderr and "by the kernel to itself" in verdict.stderr


def test_a_count_of_out_of_memory_kills_names_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both versions of cgroups and the machine count them."""
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    (tmp_path / "vmstat").write_text("nr_free_pages 5\noom_kill 7\n")
    monkeypatch.setattr(senders, "CGROUP", tmp_path)
    monkeypatch.setattr(senders, "PROC", tmp_path)
    assert senders.ended_for_memory() == {"the machine": 7, "its cgroup": 2}
    assert "for want of memory (its cgroup counts 1 more" in senders.who({"its cgroup": 1}, {"its cgroup": 2})
    assert senders.who({"its cgroup": 2}, {"its cgroup": 2}).startswith("sent by somebody")


def test_a_fault_of_the_kernel_itself_is_not_tried_again() -> None:
    """A segmentation fault has no sender."""
    assert senders.sent(-signal.SIGTERM) and senders.sent(-signal.SIGKILL)
    assert not senders.sent(-signal.SIGSEGV) and not senders.sent(1)


def test_a_stopped_worker_is_waited_for(host: Isolated) -> None:
    """SIGSTOP and SIGCONT a second later, as a debugger or a batch system does."""

    def pause(worker: ForkedWorker) -> None:
        os.kill(worker.pid, signal.SIGSTOP)
        threading.Timer(1.0, os.kill, (worker.pid, signal.SIGCONT)).start()
        time.sleep(0.1)

    assert isinstance(verified(host, pause, 1), Pass)


@pytest.mark.parametrize(("ended", "others"), [([True, False], 1), ([False, False], 0), ([True, True], 0)])
def test_a_block_of_a_comparison_is_taken_again_after_one_signal(
    monkeypatch: pytest.MonkeyPatch, ended: list[bool], others: int
) -> None:
    """It ended with "could not be measured", as if a side were broken; a second signal, or none, still does."""
    tries = iter(ended)
    now = [False]
    worker = SimpleNamespace(struck=lambda: now[0] or None)
    ready = SimpleNamespace(worker=worker, candidates=lambda: [SimpleNamespace(notes=())])
    side = SimpleNamespace(bound=lambda prepared: (None, ready), cases=SimpleNamespace(device="cpu"))

    def warmed(*given: object) -> None:
        now[0] = next(tries)
        if now[0] or not others:
            raise MeasurementFailed("the worker ended with status -9")

    monkeypatch.setattr(compare, "_warm", warmed)
    monkeypatch.setattr(compare, "leave", lambda *given: None)
    monkeypatch.setattr(compare, "_taker", lambda *given: None)
    monkeypatch.setattr(compare, "take_pairs", lambda *given: [(1.0, 2.0)] * 3)
    for name in ("far_values", "unseen_contents", "_audited"):
        monkeypatch.setattr(compare, name, lambda *given: None)
    taken = compare._Pairs()
    block = (side, side, None, None, None, taken)
    if others:
        compare._block(*block, b_first=False)  # type: ignore[arg-type]
        assert len(taken.mine) == 3 and any("taken again" in note for note in taken.notes)
    else:
        with pytest.raises(MeasurementFailed):
            compare._block(*block, b_first=False)  # type: ignore[arg-type]
        assert not taken.mine
