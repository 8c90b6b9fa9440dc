"""What stands around a worker: who is out of its reach, and what its death or its hang may cost."""

from __future__ import annotations

import os
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import contextlib

from tests.redteam import walls

from opforge.core.verdict import Timeout
from opforge.registry import load
from opforge.runner import Arena, Isolated, WorkerDied, processes, seccomp, watchdog
from opforge.runner.messages import Overhead
from opforge.runner.process_limits import changed, limits_of, privileged
from opforge.runner.watchdog import HANG_S
from opforge.verify import CaseCache, verify
from opforge.verify.cases.hidden import EXACT

linux = pytest.mark.skipif(sys.platform != "linux", reason="namespaces, seals and filters are Linux's")


@linux
def test_nobody_can_cut_an_arena_short():
    """Whoever has it mapped would be ended by SIGBUS, the parent too."""
    arena = Arena.allocate([("x", "input", "float32", (1 << 16,), "contiguous")])
    for size in (0, 1 << 24):
        with pytest.raises(PermissionError):
            os.ftruncate(arena.fd, size)
    arena.close()


@linux
def test_a_worker_that_dies_newborn_costs_a_moment():
    """Its end of the socket was held by the parent itself, who waited for 300 s for the first word of a dead
    process.
    """
    with Isolated() as host:
        host.worker({}).close()
        server = next(iter(host.servers.values()))
        known, stop = set(processes.children(server.pid)), threading.Event()

        def hunt() -> None:
            while not stop.is_set():
                processes.kill(set(processes.children(server.pid)) - known)

        hunter = threading.Thread(target=hunt)
        hunter.start()
        slowest = 0.0
        try:
            for _ in range(8):
                began = time.monotonic()
                with contextlib.suppress(Exception):
                    host.worker({}).request(Overhead(batch=1, count=1), (), 20.0)
                slowest = max(slowest, time.monotonic() - began)
        finally:
            stop.set()
            hunter.join()
        assert slowest < 5.0
        # and the next one is fine
        host.worker({}).close()


@linux
def test_a_worker_that_has_died_is_dead_whenever_it_is_asked():
    """Its descriptors were used again: that ended the timing of all its rivals, or met a file of somebody else's."""
    with Isolated() as host:
        worker = host.worker({})
        processes.kill([worker.pid])
        reasons = []
        for _ in range(3):
            with pytest.raises(WorkerDied) as died:
                worker.request(Overhead(batch=1, count=1), (), 20.0)
            reasons.append((died.value.status, died.value.stderr))
        assert len(set(reasons)) == 1 and reasons[0][0] == -9
        other = host.worker({})
        other.close()
        with pytest.raises(WorkerDied, match="-9"):
            other.request(Overhead(batch=1, count=1), (), 20.0)


def test_a_filter_jumps_only_to_where_it_has_steps():
    """A jump past the end is refused by the kernel, and then nothing would be filtered; every call has its number on
    both machines.
    """
    for machine in seccomp.ARCHITECTURES:
        for own, signals in ((None, False), (4321, True)):
            program = seccomp.program(machine, own, signals=signals)
            steps = [program[place : place + 8] for place in range(0, len(program), 8)]
            assert len(steps) < 4096 and len(program) % 8 == 0
            for place, step in enumerate(steps):
                code, then, otherwise = int.from_bytes(step[:2], "little"), step[2], step[3]
                assert code == seccomp.RETURN or place + 1 + max(then, otherwise) < len(steps)
        assert len(set(seccomp.refused_calls(machine).values())) == len(seccomp.refused_calls(machine))


@linux
def test_a_changed_server_is_left_for_a_new_one():
    """Workers inherit what their server may use: a time taken on half of the processors at nice 19 is nobody's."""
    with Isolated() as host:
        host.worker({}).close()
        server = next(iter(host.servers.values()))
        os.setpriority(os.PRIO_PROCESS, server.pid, 5)
        worker = host.worker({})
        assert server.closed and any("nice 0 became 5" in note or "nice" in note for note in host.notes)
        assert os.getpriority(os.PRIO_PROCESS, worker.pid) == os.getpriority(os.PRIO_PROCESS, 0)
        worker.close()


@linux
def test_who_takes_more_than_it_is_given_is_not_timed():
    """Priority over rivals is time taken from them; less of it is a kernel's own business."""
    here = limits_of(os.getpid())
    assert here is not None and changed(here, here) == "" and privileged(here, here) == ""
    from dataclasses import replace

    assert "nice" in changed(here, replace(here, nice=here.nice + 1)) and not privileged(
        here, replace(here, nice=here.nice + 1)
    )
    assert "nice" in privileged(here, replace(here, nice=here.nice - 1)) and "processors" in privileged(
        here, replace(here, processors=here.processors | {4096})
    )


@linux
def test_a_hang_is_ended_by_the_watchdog_and_by_nobody_else(tmp_path):
    """A guard that nobody switches off may have stopped working: with it down, the caller's whole patience is spent."""
    attack = next(attack for attack in walls.ATTACKS if attack.name == "hang")
    outcome = next(walls.try_all(tmp_path, [attack]))
    assert not outcome.harmed and outcome.harms_without, outcome


@pytest.mark.parametrize(
    "limit_s", [pytest.param(10.0, marks=pytest.mark.campaign), pytest.param(HANG_S, marks=pytest.mark.slow)]
)
def test_a_hang_costs_half_a_minute(limit_s, tmp_path, monkeypatch):
    """It cost four minutes in a call, and ten at import, once for the case and once for a smaller one. Both are waited
    for at the same time.
    """
    monkeypatch.setattr(watchdog, "HANG_S", limit_s)
    with ThreadPoolExecutor(2) as pool:
        for verdict, took_s in pool.map(lambda where: hang(where, tmp_path / where), ("run", "import")):
            assert isinstance(verdict, Timeout) and verdict.limit_s <= limit_s + 1
            # twice as long where others have the processors; once on a quiet machine
            assert took_s < 2 * limit_s + 5


def hang(where, home):
    """The verdict on a kernel that never ends, in a call or at import, and the seconds to it."""
    folder = home / "doubled"
    folder.mkdir(parents=True)
    body = "def run(x):\n    while True:\n        pass\n" if where == "run" else "while True:\n    pass\n"
    (folder / "torch_guest.py").write_text(body)
    (folder / "op.py").write_text(
        textwrap.dedent("""
            from opforge.core.operator import Case, Operator, TensorSpec
            operator = Operator(name="doubled", about="y = 2 x", inputs=(TensorSpec(name="x", shape="n"),),
            outputs=(TensorSpec(name="y", shape="n"),),
                reference=lambda x: 2 * x, flops="n", dtypes=("float32",), cases=(Case(name="small", axes={"n": 64},
                why="small"),), implementations=("torch_guest",))
        """)
    )
    registry = load([home])
    with Isolated() as host:
        host.worker({}).close()
        bench = CaseCache(registry=registry, operator=registry.operator("doubled"), host=host, device="cpu")
        bench.prepare(registry.operator("doubled").cases[0], "float32")
        began = time.monotonic()
        verdict = verify(bench, registry.implementation("doubled", "torch_guest"), "float32", effort=EXACT)
        bench.close()
        return verdict, time.monotonic() - began
