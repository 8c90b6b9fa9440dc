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

from opforge.backends import backend, compile_phase
from opforge.core.evidence.verdict import Crash, Pass, Timeout
from opforge.core.language import spans
from opforge.registry import load
from opforge.report.record_text import describe
from opforge.runner import Arena, Isolated, WorkerDied
from opforge.runner.parent import client, watchdog
from opforge.runner.parent.watchdog import HANG_S
from opforge.runner.walls import processes
from opforge.runner.walls.process_limits import changed, limits_of, privileged
from opforge.runner.wire.messages import Bind, Overhead, Run
from opforge.verify import CaseCache, verify
from opforge.verify.cases.hidden import EXACT
from opforge.walls import seccomp

pytestmark = pytest.mark.own_servers

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
        for verdict, took_s in pool.map(lambda where: judged(ENDLESS[where], tmp_path / where), ("run", "import")):
            assert isinstance(verdict, Timeout) and verdict.limit_s <= limit_s + 1
            # twice as long where others have the processors; once on a quiet machine
            assert took_s < 2 * limit_s + 5


KERNEL = """
import triton
import triton.language as tl
SPACE = {"BLOCK": (64,)}
DEFAULT = {"BLOCK": 64}
@triton.jit
def doubled(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    times = 0
    while times < 1:
        times = times * 2
    tl.store(y + at, value * 2, mask=at < n)
def launch(x, y, BLOCK):
    doubled[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), BLOCK)
"""
ENDLESS = {
    "run": "def run(x):\n    while True:\n        pass\n",
    "import": "while True:\n    pass\n",
    "triton": KERNEL,
}
SLOW_COMPILER = """
import time
import torch._inductor.config as config
def pondered(graph):
    begun = time.process_time()
    while time.process_time() - begun < SECONDS:
        pass
config.post_grad_custom_pre_pass = pondered
def run(x):
    return x * 2
"""


@linux
@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("run", "torch_guest"),
        pytest.param("triton", "triton_guest", marks=pytest.mark.campaign),
        # Dynamo follows the loop while it traces, before Inductor is asked
        pytest.param("run", "torch_compile_guest", marks=pytest.mark.campaign),
    ],
)
def test_an_endless_loop_has_the_limit_of_a_call_whatever_compiles_it(body, name, tmp_path, monkeypatch):
    """Where a compiler may run in the first call, an endless loop had the compiler's limit: two minutes, four on a busy
    machine.
    """
    # a wait is said from two seconds on: a limit of two leaves no time to see it
    monkeypatch.setattr(watchdog, "HANG_S", 3.5)
    said = []
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.1):
            said.extend(spans.waits())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        verdict, _ = judged(ENDLESS[body], tmp_path, name)
    finally:
        stop.set()
        looking.join()
    assert isinstance(verdict, Timeout) and verdict.limit_s <= 3.6 and not verdict.compiling, verdict
    assert any(words.startswith(f"doubled {name} running for 2 s; ended at ") for words in said), said
    assert "within 3.5" in describe(verdict)
    assert not spans.waits()


@linux
@pytest.mark.campaign
def test_a_compiler_that_is_slow_keeps_its_own_limit(tmp_path, monkeypatch):
    """Inductor works for longer than a call may take; one that never ends is ended by its own limit, and that is
    said.
    """
    monkeypatch.setattr(watchdog, "HANG_S", 5.0)
    verdict, _ = judged(SLOW_COMPILER.replace("SECONDS", "12"), tmp_path / "slow", "torch_compile_guest")
    assert isinstance(verdict, Pass), verdict
    monkeypatch.setattr(watchdog, "COMPILE_S", 8.0)
    verdict, _ = judged(SLOW_COMPILER.replace("SECONDS", "1e9"), tmp_path / "endless", "torch_compile_guest")
    assert isinstance(verdict, Timeout) and verdict.compiling and 8.0 <= verdict.limit_s <= 8.1, verdict
    assert describe(verdict).partition(": its compiler did not end; split the source")[1]


class Machine:
    """A clock, and what a worker has had of the processors, as a test says."""

    def __init__(self, monkeypatch) -> None:
        self.now = self.worked = self.waited = 0.0
        self.sealed = True
        monkeypatch.setattr(watchdog.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(processes, "tree", lambda pids: list(pids))
        monkeypatch.setattr(processes, "processor_s", lambda pid: self.worked)
        monkeypatch.setattr(processes, "kept_waiting_s", lambda pid: self.waited)
        monkeypatch.setattr(processes, "confinement_of", lambda pid: {"filtered": self.sealed})

    def late_after(self, dog: watchdog.Watchdog, most_s: float, *, works: bool = True) -> float | None:
        """Seconds from now after which the watchdog calls the worker late; None where it does not within `most_s`."""
        begun = self.now
        while self.now - begun < most_s:
            self.now += 0.5
            self.worked += 0.5 * works
            if dog.late() is not None:
                return self.now - begun
        return None


def watched(machine, name, device="cpu"):
    dog = watchdog.Watchdog(1)
    question = Bind(homes=(), operator="o", implementation=name, axes={}, dtype="float32", scalars={}, device=device,
                    config=None, arena={"size": 0})  # fmt: skip
    dog.begin(question, 0, 300.0)
    machine.late_after(dog, 1.0)
    dog.begin(Run(launch=1), 0, 120.0)
    return dog


def test_a_compiler_that_has_ended_leaves_no_debt_of_work(monkeypatch):
    """A g++ of half a minute was counted as long as it ran: what its parent compiles afterwards is work from the first
    second, not from when it has taken as long.
    """
    machine = Machine(monkeypatch)
    dog = watched(machine, "torch_compile")
    dog.told(True)
    assert machine.late_after(dog, 20.0) is None
    machine.worked += 40.0
    assert machine.late_after(dog, 1.0) is None
    machine.worked -= 40.0
    assert machine.late_after(dog, 60.0) is None
    assert machine.late_after(dog, 60.0, works=False) == pytest.approx(30.5)


def test_compiling_and_running_are_counted_apart(monkeypatch):
    """Each has its own limit, and goes on where it was left: whoever tells of compilers often gains nothing by it."""
    machine = Machine(monkeypatch)
    dog = watched(machine, "torch_compile")
    assert machine.late_after(dog, 100.0) == pytest.approx(30.5)
    dog = watched(machine, "torch_compile")
    assert machine.late_after(dog, 10.0) is None
    dog.told(True)
    assert (
        machine.late_after(dog, 100.0) is None and dog.words() == "o torch_compile compiling for 100 s; ended at 120 s"
    )
    dog.told(False)
    assert dog.words() == "o torch_compile running for 10 s; ended at 30 s"
    assert machine.late_after(dog, 100.0) == pytest.approx(20.5)
    dog = watched(machine, "tilelang_guest")
    spent = 0.0
    for turn in range(1000):
        dog.told(turn % 2 == 0)
        took = machine.late_after(dog, 1.0)
        spent += took or 1.0
        if took:
            break
    assert spent <= 2 * 30.5 + 1


def test_a_compiler_that_does_nothing_hangs(monkeypatch):
    """Who compiles spends processor time."""
    machine = Machine(monkeypatch)
    dog = watched(machine, "torch_compile")
    dog.told(True)
    assert machine.late_after(dog, 100.0, works=False) == pytest.approx(30.5)


@pytest.mark.parametrize(("name", "device"), [("cpp_guest", "cpu"), ("cuda_guest", "cuda"), ("torch_guest", "cpu"),
                                              ("triton_guest", "cpu")])  # fmt: skip
def test_who_compiles_nothing_in_a_call_is_not_believed_that_it_does(name, device, monkeypatch):
    machine = Machine(monkeypatch)
    dog = watched(machine, name, device)
    dog.told(True)
    assert machine.late_after(dog, 200.0) == pytest.approx(30.5)


def test_triton_says_when_its_compiler_begins_and_ends(monkeypatch):
    """Once in a process, a compiler that raises included. Where it cannot be seen a first call may be the compiler's;
    where nobody listens, nobody's Triton is touched.
    """
    import triton
    from triton.runtime.jit import JITFunction

    told: list[object] = []

    def stub(self, key):
        told.append(key)
        if key == "wrong":
            raise ValueError(key)
        return key

    assert callable(JITFunction._do_compile)
    monkeypatch.setattr(compile_phase, "_listener", None)
    monkeypatch.setattr(compile_phase, "_unseen", False)
    monkeypatch.setattr(JITFunction, "_do_compile", stub)
    compile_phase.report(compile_phase.around_triton)
    assert JITFunction._do_compile is stub and not compile_phase.unseen()
    compile_phase.listen(told.append)
    for _ in range(2):
        compile_phase.report(compile_phase.around_triton)
    kernel = triton.jit(stub)
    with pytest.raises(ValueError, match="wrong"):
        JITFunction._do_compile(kernel, "wrong")
    assert JITFunction._do_compile(kernel, "right") == "right"
    assert told == [True, "wrong", False, True, "right", False]
    # with a hook set, Triton wants every constant as JSON
    assert triton.knobs.runtime.jit_cache_hook is None and triton.knobs.runtime.jit_post_compile_hook is None
    monkeypatch.delattr(JITFunction, "_do_compile")
    compile_phase.report(compile_phase.around_triton)
    assert compile_phase.unseen()


@linux
def test_a_worker_that_talks_of_compilers_without_end_is_ended(tmp_path, monkeypatch):
    """Each of its messages would wake the parent, which never looked at its clock."""
    monkeypatch.setattr(client, "MOST_PHASES", 50)
    flood = """
import gc
from opforge.backends import compile_phase
def run(x):
    while True:
        with compile_phase.compiling():
            pass
"""
    verdict, _ = judged(flood, tmp_path)
    assert isinstance(verdict, Crash) and "over and over" in verdict.stderr, verdict


def judged(body, home, name="torch_guest"):
    """The verdict on a kernel of this source, and the seconds to it."""
    folder = home / "doubled"
    folder.mkdir(parents=True)
    file = "torch_guest" if name == "torch_compile_guest" else name
    (folder / f"{file}.py").write_text(body)
    (folder / "op.py").write_text(
        textwrap.dedent(f"""
            from opforge.core.operator import Case, Operator, TensorSpec
            operator = Operator(name="doubled", about="y = 2 x", inputs=(TensorSpec(name="x", shape="n"),),
            outputs=(TensorSpec(name="y", shape="n"),),
                reference=lambda x: 2 * x, flops="n", dtypes=("float32",), cases=(Case(name="small", axes={{"n": 64}},
                why="small"),), implementations=("{file}",))
        """)
    )
    registry = load([home])
    with Isolated() as host:
        implementation = registry.implementation("doubled", name)
        host.worker(backend(implementation.backend).environment("cpu")).close()
        bench = CaseCache(registry=registry, operator=registry.operator("doubled"), host=host, device="cpu")
        bench.prepare(registry.operator("doubled").cases[0], "float32")
        began = time.monotonic()
        verdict = verify(bench, implementation, "float32", effort=EXACT)
        bench.close()
        return verdict, time.monotonic() - began


def test_an_interpreted_call_that_gets_on_is_slow_and_one_that_does_not_hangs(monkeypatch):
    """A kernel that is merely slow in the interpreter failed after 30 s beside a torch.compile; alone it passed. It has
    100 s of processor time while it gets on; who loops without end is ended after 30 s as before."""
    machine = Machine(monkeypatch)
    dog = watched(machine, "triton_slow")
    for _ in range(24):
        dog.told(True)
        # others have the processor half of the time
        assert machine.late_after(dog, 4.0) is None
        machine.now += 4.0
    assert dog.slow()
    dog.told(True)
    late_s = machine.late_after(dog, 10.0)
    assert late_s is not None and 4.0 <= late_s <= 6.0 and dog.slow()

    machine = Machine(monkeypatch)
    dog = watched(machine, "triton_endless")
    dog.told(True)
    late_s = machine.late_after(dog, 60.0)
    assert late_s is not None and 29.0 <= late_s <= 32.0 and not dog.slow()


def test_a_worker_that_somebody_stopped_is_not_late(monkeypatch):
    """A debugger, a batch system: the time in which it could not run is not the kernel's."""
    machine = Machine(monkeypatch)
    dog = watched(machine, "cpp_stopped")
    monkeypatch.setattr(processes, "stopped", lambda pid: True)
    assert machine.late_after(dog, 100.0, works=False) is None
    monkeypatch.setattr(processes, "stopped", lambda pid: False)
    late_s = machine.late_after(dog, 60.0, works=False)
    assert late_s is not None and 29.0 <= late_s <= 32.0
