"""Arenas, layouts, binding, workers."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from opforge.core.definition.implementation import Rejected
from opforge.core.definition.operator import Case
from opforge.registry import load
from opforge.runner import Arena, InProcess, Isolated, WorkerDied, WorkerLate, allocate, bind, fill
from opforge.runner.walls.guards import default_limits
from opforge.runner.wire.messages import QUESTIONS, Bind, Failed, LaunchBound, Launched, Run
from opforge.runner.wire.protocol import Malformed, decoded
from opforge.runner.worker.arena import GUARD_BYTES
from opforge.verify import PreparedCase

pytestmark = pytest.mark.own_servers

HONEST = "def run(x, bias):\n    return x + bias\n"


@pytest.fixture(scope="module")
def host():
    with Isolated() as host:
        yield host


def prepared(home, axes=None, **case):
    operator = load([home]).operator("guest_add")
    case = Case(name="c", axes=axes or {"rows": 4, "cols": 9}, why="", **case)
    arena = allocate(operator, case, "float32")
    fill(arena, operator, case, 7)
    return operator, case, arena


def ask(worker, home, arena, axes, name="torch_eager", **changes):
    question = Bind(
        homes=(str(home),),
        operator="guest_add",
        implementation=name,
        axes=axes,
        dtype="float32",
        scalars={},
        device="cpu",
        config=None,
        arena=arena.describe(),
    )
    return worker.request(dataclasses.replace(question, **changes), [arena.fd])


def test_this_process_needs_no_preparation():
    """Which toolchains there are is looked up when an environment is asked for: here none is."""
    asked: list[str] = []
    InProcess().ready({"OPFORGE_PRELOAD": str(asked.append("torch"))} for _ in range(1))
    assert asked == []


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced", "strided", "misaligned", "expanded"])
def test_layouts_hold_the_same_values_in_other_places(guest, layout):
    """The values of a seed do not depend on where they lie (but an expanded axis repeats one row)."""
    home = guest(eager=HONEST)
    _, _, plain = prepared(home)
    _, _, arena = prepared(home, layout=layout)
    x = arena.tensor("x")
    assert tuple(x.shape) == (4, 9) and x.data_ptr() % 4 == 0
    if layout != "expanded":
        assert torch.equal(x, plain.tensor("x"))
        assert layout in ("contiguous", "misaligned") or not x.is_contiguous()
    else:
        assert x.stride(0) == 0
    assert torch.isnan(arena.tensor("y")).all()
    arena.close()
    plain.close()


def test_what_outputs_hold_may_stay_while_all_else_is_brought_back():
    """A kernel that looks whether its answer is there already is given its last one, and nothing else of that run: an
    output with gaps is brought back too, since what lies in the gaps is nobody's.
    """
    arena = Arena.allocate(
        [
            ("x", "input", "float32", (4, 8), "strided"),
            ("y", "output", "float32", (4, 8), "contiguous"),
            ("z", "output", "float32", (4, 8), "strided"),
        ]
    )
    pristine = arena.bytes().clone()
    nobody: Any = None
    case = PreparedCase(case=nobody, dtype="float32", arena=arena, truth=nobody, pristine=pristine, place=None)
    arena.bytes().bitwise_xor_(1)
    case.reset(outputs=False)
    y = next(slot for slot in arena.slots if slot.name == "y")
    changed = (arena.bytes() != pristine).nonzero().flatten().tolist()
    assert changed == list(range(y.offset, y.offset + y.span_bytes))
    case.reset()
    assert torch.equal(arena.bytes(), pristine)
    arena.close()


def test_guards_tell_who_wrote_where(guest):
    """A write past the end, before the start, or into an input is named after its buffer."""
    _, _, arena = prepared(guest(eager=HONEST))
    slots = {slot.name: slot for slot in arena.slots}
    before = arena.bytes().clone()
    whole = arena.bytes()
    arena.tensor("y").fill_(1.0)
    assert arena.violations(before) == []
    whole[slots["y"].offset + slots["y"].span_bytes + 5] ^= 0xFF
    assert arena.violations(before) == ["1 bytes were written past the end of y"]
    whole[slots["y"].offset + slots["y"].span_bytes + 5] ^= 0xFF
    whole[slots["x"].offset] ^= 1
    assert "input x was modified" in arena.violations(before)[0]
    assert GUARD_BYTES >= 4096
    arena.close()


def test_binding_refuses_what_an_implementation_does_not_take(guest):
    home = guest(eager=HONEST)
    registry = load([home])
    operator = registry.operator("softmax")
    native = registry.implementation("softmax", "cpp_twopass")
    x = torch.randn(5, 7).t()
    out = bind(operator, native, {"x": x}, {"y": torch.empty(7, 5)}, {}, {"lead": (7,), "cols": 5}, "float32")
    assert isinstance(out, Rejected) and "contiguous()" in out.reason


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def run(x, bias):\n    return (x + bias)[:2]\n", "shape"),
        ("def run(x, bias):\n    return (x + bias).double()\n", "float64"),
        ("def run(x, bias):\n    return None\n", "NoneType"),
        ("def run(x, bias):\n    return x + bias, x\n", "2 values"),
        ("def run(x, bias):\n    x.add_(bias)\n    return x\n", "memory of an input"),
        ("def run(x, bias):\n    raise ValueError('no')\n", "ValueError: no"),
        ("import nowhere_at_all\n", "nowhere_at_all"),
    ],
)
def test_broken_contracts_come_back_as_words(guest, host, source, words):
    home = guest(eager=source)
    _, case, arena = prepared(home)
    worker = host.worker({})
    answer = ask(worker, home, arena, case.axes)
    if isinstance(answer, LaunchBound):
        answer = worker.request(Run(launch=answer.launch))
    assert isinstance(answer, Failed) and words in answer.reason
    worker.close()
    arena.close()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("import os; os._exit(0)", 0),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
        ("import sys; sys.exit(3)", None),
    ],
)
def test_a_worker_that_dies_costs_one_answer(guest, host, body, status):
    """exit(0) in the middle of a call is no success; the next worker is fine."""
    home = guest(eager=f"def run(x, bias):\n    {body}\n")
    _, case, arena = prepared(home)
    worker = host.worker({})
    number = ask(worker, home, arena, case.axes).launch
    with pytest.raises(WorkerDied) as died:
        worker.request(Run(launch=number))
    assert status is None or died.value.status == status
    again = host.worker({})
    assert isinstance(ask(again, home, arena, case.axes), LaunchBound)
    again.close()
    arena.close()


def test_a_worker_makes_no_folder_of_the_users_for_inductor(guest, host, tmp_path):
    """CUDA kernels were Broken where TORCHINDUCTOR_CACHE_DIR named a folder that was not there: PyTorch makes it, and a
    worker cannot.
    """
    folder = tmp_path / "not" / "there"
    body = "import os; os.makedirs(os.environ['TORCHINDUCTOR_CACHE_DIR'], exist_ok=True); return x + bias"
    home = guest(eager=f"def run(x, bias):\n    {body}\n")
    _, case, arena = prepared(home)
    worker = host.worker({"TORCHINDUCTOR_CACHE_DIR": str(folder)})
    number = ask(worker, home, arena, case.axes).launch
    assert isinstance(worker.request(Run(launch=number)), Launched)
    assert not folder.parent.exists()
    worker.close()
    arena.close()


def test_a_worker_that_hangs_is_ended(guest, host):
    home = guest(eager="def run(x, bias):\n    while True:\n        pass\n")
    _, case, arena = prepared(home)
    worker = host.worker({})
    number = ask(worker, home, arena, case.axes).launch
    pid = worker.pid
    with pytest.raises(WorkerLate):
        worker.request(Run(launch=number), limit_s=0.5)
    deadline = time.monotonic() + 10
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(pid)
    arena.close()


def test_nothing_outlives_a_parent_that_is_killed():
    """kill -9 of the parent: its server and its workers go too."""
    code = textwrap.dedent("""
        import time
        from opforge.runner import Isolated
        host = Isolated(); worker = host.worker({})
        print(worker.pid, host.servers[()].process.pid, flush=True)
        time.sleep(60)
    """)
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2 and all(map(_alive, pids))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in pids if _alive(pid)]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end between open and read
        return False


def test_in_process_runs_here_and_says_so(guest):
    home = guest(eager=HONEST)
    _, case, arena = prepared(home)
    host = InProcess()
    worker = host.worker({})
    number = ask(worker, home, arena, case.axes).launch
    assert isinstance(worker.request(Run(launch=number)), Launched)
    assert torch.equal(arena.tensor("y"), arena.tensor("x") + arena.tensor("bias"))
    assert "in-process" in host.isolation
    worker.close()
    arena.close()


def test_an_arena_is_seen_by_its_other_side(guest):
    _, _, arena = prepared(guest(eager=HONEST))
    other = Arena.attach(arena.describe(), os.dup(arena.fd))
    other.tensor("y").fill_(3.0)
    assert (arena.tensor("y") == 3.0).all()
    other.close()
    arena.close()


def test_a_killed_worker_that_takes_its_time_to_end_is_no_other_workers_doing(monkeypatch):
    """A driver may take seconds to let a process go. Seen on a GPU under load: honest kernels were called crashed, and
    a server was ended.
    """
    from opforge.runner.walls import processes

    with Isolated() as host:
        slow, other = host.worker({}), host.worker({})
        server, pid, alive = slow.server, slow.pid, processes.alive
        monkeypatch.setattr(server, "status", lambda *_: None)
        monkeypatch.setattr(processes, "children", lambda _: [pid])
        monkeypatch.setattr(processes, "alive", lambda asked: asked == pid or alive(asked))
        slow.close()
        assert server.adopted() == []
        # it has ended, and its number belongs to a process that somebody did leave behind
        monkeypatch.setattr(processes, "alive", lambda asked: False)
        assert server.adopted() == []
        monkeypatch.setattr(processes, "alive", lambda asked: True)
        assert server.adopted() == [pid]
        monkeypatch.undo()
        other.close()


@pytest.mark.parametrize(
    ("asked", "answer", "fine"),
    [
        ("sample", {"status": "ok", "samples": [1e-3, 2e-3], "batch": 4}, True),
        ("sample", {"status": "unfit", "reason": "no graph can be captured"}, True),
        ("sample", {"status": "ok", "batch": 4}, False),
        ("sample", {"status": "ok", "samples": [], "batch": 4}, False),
        ("sample", {"status": "ok", "samples": [float("nan")], "batch": 4}, False),
        ("sample", {"status": "ok", "samples": [10**400], "batch": 4}, False),
        ("sample", {"status": "ok", "samples": [1e-3], "batch": 10**400}, False),
        ("sample", {"status": "ok", "samples": [-1e-3], "batch": 4}, False),
        ("run", {"status": "ok", "operations": {"aten.mm": "many"}}, False),
        ("run", {"status": "bound", "launch": 1}, False),
        ("overhead", {"status": "ok", "samples": [1e-6], "step": 1e-9, "threads": 2, "cpus": 2}, True),
        ("overhead", {"status": "ok", "samples": [1e-6], "step": "short", "threads": 2, "cpus": 2}, False),
        ("bind", {"status": "lacks"}, False),
        ("work", {"status": "ok", "pieces": 2}, False),
    ],
)
def test_an_answer_holds_what_the_question_asks_for(asked, answer, fine):
    """What a worker sends is foreign: a missing field, or a number that no float can hold, was a traceback and the end
    of all verdicts.
    """
    # of a question nothing is looked at but its kind
    question = object.__new__(QUESTIONS[asked])
    with contextlib.nullcontext() if fine else pytest.raises(Malformed, match="not one that a worker gives"):
        decoded(question, {**answer, "nonce": 7}, 7)
    with pytest.raises(Malformed, match="it answered a question that was not asked"):
        decoded(question, {**answer, "nonce": 8}, 7)


@pytest.mark.parametrize(("available_gib", "limit_gib"), [(0.2, 1), (0, 2), (6, 3), (40, 8), (100, 50)])
def test_a_worker_may_use_what_its_control_group_has(available_gib, limit_gib, monkeypatch):
    """Half of a host's memory in a container of a few GiB: a kernel that takes all it may get ends the container,
    opforge included.
    """
    monkeypatch.setattr("opforge.machine.host_hardware.available_bytes", lambda: int(available_gib * 2**30))
    assert default_limits().memory_bytes == limit_gib * 2**30


def test_a_flood_of_words_is_cut():
    """An exception of megabytes went into the record, the page and the terminal."""
    answer = {"status": "failed", "reason": "first" + "y" * 10_000_000 + "last"}
    reason = decoded(Run(launch=1), answer).reason
    assert len(reason) < 20_000 and reason.startswith("first") and reason.endswith("last")


def test_a_host_that_is_closed_as_the_interpreter_ends_closes_without_a_word():
    """By then no thread is started any more: a trace came instead, and the server was left to itself."""
    code = (
        "import atexit\nfrom opforge.runner import Isolated\nhost = Isolated()\natexit.register(host.close)\n"
        "host.worker({}).close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
