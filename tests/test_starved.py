"""A machine that is short of processes, memory or time: no kernel is blamed for it, what was found is kept, and an end
has its reason.
"""

from __future__ import annotations

import errno
import importlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from opforge.backends.native import CompilationFailed
from opforge.cli import app
from opforge.core.definition.operator import Case
from opforge.core.evidence.verdict import Mismatch, Unsupported
from opforge.core.language.errors import EnvironmentLacks, NotNow
from opforge.registry import load
from opforge.runner import (
    Isolated,
)
from opforge.runner.parent import (
    client,
    forkserver_client,
    host as host_module,
)
from opforge.runner.walls import (
    processes,
)
from opforge.runner.walls.guards import ALL
from opforge.runner.wire.channel import Late, receive, send
from opforge.runner.wire.messages import Bind, Failed, Spare
from opforge.runner.wire.protocol import asked
from opforge.runner.worker import (
    executor as executor_module,
)
from opforge.runner.worker.executor import Executor
from opforge.runner.worker.sampling import Rotation
from opforge.timing.worker_requests import look_at_clocks
from opforge.trial import case_check
from opforge.verify import CaseCache, verify
from opforge.verify.cases.case_cache import Undefined
from opforge.verify.cases.hidden import QUICK
from opforge.workbench import BenchOptions, extra_checks, verify_all

pytestmark = pytest.mark.own_servers

BENCH = importlib.import_module("opforge.workbench.bench")
BOTH = {"one": "def run(x, bias):\n    return x + bias\n", "two": "def run(x, bias):\n    return x + bias\n"}


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


def test_an_answer_that_is_there_is_taken_however_late_one_looks(pair):
    """A parent that was kept from running until after the deadline must not call the worker late."""
    ours, theirs = pair

    def kept_from_running():
        send(theirs, {"status": "ok"})
        time.sleep(0.2)

    assert receive(ours, 0.1, kept_from_running) == ({"status": "ok"}, [])
    with pytest.raises(Late):
        receive(ours, 0.1, lambda: None)


def test_a_message_that_has_begun_is_read_to_its_end(pair):
    """Half a message left in the socket would be taken for the length of the next, and a sound server would be given
    up.
    """
    ours, theirs = pair
    body = b'{"status": "exited"}'
    theirs.sendall(struct.pack("!I", len(body)))
    rest = threading.Timer(0.3, lambda: theirs.sendall(body))
    rest.start()
    assert receive(ours, 0.1)[0] == {"status": "exited"}
    rest.join()


def test_a_server_that_cannot_start_a_worker_keeps_those_it_has(tmp_path):
    """A full disk, or no process left, ended the server, and every other worker with it: honest kernels were called
    crashed.
    """
    with Isolated() as host:
        worker = host.worker({})
        folder = worker.server.folder
        shutil.rmtree(folder)
        folder.write_text("no room for a folder")
        with pytest.raises(NotNow, match=r"File exists.*Run the command again"):
            host.worker({})
        assert processes.alive(worker.pid) and not worker.server.closed
        folder.unlink()
        # a folder that was tidied away is made again
        host.worker({}).close()
        worker.close()


@pytest.mark.campaign
def test_a_server_that_does_not_answer_in_time_is_no_traceback(monkeypatch):
    """What it answers later could be taken for another answer: the next worker comes from a new one."""
    with Isolated() as host:
        host.worker({}).close()
        first = host.servers[()]
        processes.kill([first.pid], signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr(processes, "kill", lambda *_: None)
            for module in (forkserver_client, host_module, client):
                for name in ("START_LIMIT_S", "END_LIMIT_S"):
                    patch.setattr(module, name, 0.3, raising=False)
            with pytest.raises(NotNow, match="less runs beside it"):
                host.worker({})
        host.worker({}).close()
        assert host.servers[()] is not first
        processes.kill([first.pid], signal.SIGKILL)


def test_a_process_that_cannot_be_started_says_so(monkeypatch):
    """`fork: Resource temporarily unavailable` is the machine's, and has no file name to put into a message."""

    def refused(*_, **__):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with Isolated() as host, monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", refused)
        with pytest.raises(NotNow, match="Resource temporarily unavailable"):
            host.worker({})


def test_a_server_that_ends_while_it_starts_is_no_verdict(guest):
    """A toolchain that dies when it is imported, for memory say, made every kernel "not supported", and the exit code
    0.
    """
    registry = load([guest(**BOTH)])
    with Isolated(python="/bin/false") as host:
        bench = CaseCache(registry=registry, operator=registry.operator("guest_add"), host=host, device="cpu")
        with pytest.raises(NotNow, match="did not start"):
            verify(bench, registry.implementation("guest_add", "torch_one"), "float32", effort=QUICK)
        bench.close()


@pytest.mark.campaign
def test_a_worker_that_ends_with_its_server_has_not_crashed(guest):
    """The server is ended when another worker's processes cannot be: whoever runs beside it is not to blame."""
    home = guest(slow="import time\n\ndef run(x, bias):\n    time.sleep(30)\n    return x + bias\n")
    with Isolated() as host:
        registry = load([home])
        bench = CaseCache(registry=registry, operator=registry.operator("guest_add"), host=host, device="cpu")
        host.worker({}).close()
        ending = threading.Timer(1.0, host.servers[()].close)
        ending.start()
        with pytest.raises(NotNow, match="was ended while this one ran"):
            verify(bench, registry.implementation("guest_add", "torch_slow"), "float32", effort=QUICK)
        ending.join()
        bench.close()


def test_what_a_killed_worker_had_started_is_nobody_elses_doing(monkeypatch):
    """It is the server's child until it has ended, which takes a while on a busy machine. With processes of its own,
    what it started ends with it.
    """
    with Isolated(guards=ALL.without("own_processes")) as host:
        killed, other = host.worker({}), host.worker({})
        server = killed.server
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
        with monkeypatch.context() as patch:
            tree = processes.tree
            patch.setattr(processes, "tree", lambda pids: [*tree(pids), *([child.pid] if killed.pid in pids else [])])
            patch.setattr(processes, "kill", lambda *_: None)
            killed.close()
            patch.setattr(processes, "children", lambda pid: [child.pid] if pid == server.pid else [])
            assert server.adopted() == []
            child.kill()
            child.wait()
            assert server.adopted() == []
            patch.setattr(processes, "alive", lambda pid: True)
            # it has ended, and its number is that of a process that somebody did leave behind
            assert server.adopted() == [child.pid]
        other.close()


def test_a_closed_host_starts_no_servers():
    """Threads that were verifying when Ctrl-C came would go on for minutes."""
    host = Isolated()
    host.close()
    with pytest.raises(NotNow, match="closed"):
        host.worker({})
    assert not host.servers


@pytest.fixture
def options(monkeypatch):
    def of(side_by_side):
        monkeypatch.setattr(BENCH, "at_once", lambda device: side_by_side)
        return BenchOptions(
            device="cpu", dtypes=("float32", "bfloat16"), backends=("torch",), timed=False, effort=QUICK
        )

    return of


@pytest.fixture(scope="module")
def host():
    """One for the tests in which no kernel runs: starting its server costs a second."""
    with Isolated() as started:
        yield started


ERRORS = [
    (
        OSError(errno.EMFILE, "Too many open files"),
        EnvironmentLacks,
        "guest_add torch_one float32 got no verdict; all others are recorded. OSError.*Too many open files",
    ),
    (
        NotNow("No worker can be started. Run it again."),
        EnvironmentLacks,
        "others are recorded. No worker can be started. Run it again.",
    ),
    (MemoryError(), EnvironmentLacks, "MemoryError. Run the command again"),
    (RuntimeError("CUDA out of memory. Tried to allocate"), EnvironmentLacks, "CUDA out of memory"),
    (KeyError("a defect"), KeyError, "a defect"),
]


@pytest.mark.parametrize("side_by_side", [1, 4])
@pytest.mark.parametrize(
    ("error", "kind", "words"), ERRORS, ids=lambda value: type(value).__name__ if isinstance(value, Exception) else ""
)
def test_one_without_a_verdict_costs_the_others_nothing(
    guest, options, monkeypatch, host, side_by_side, error, kind, words
):
    """Side by side, all verdicts were lost with the first that could not be had."""

    def judged(bench, implementation, dtype, **_):
        if (implementation.name, dtype) == ("torch_one", "float32"):
            raise error
        return Unsupported(reason="found")

    monkeypatch.setattr(case_check, "verify", judged)
    monkeypatch.setattr(BENCH, "ensure_adequate", lambda operator: None)
    records = []
    with pytest.raises(kind, match=words):
        for record in verify_all(load([guest(**BOTH)]), ["guest_add"], options(side_by_side), host):
            records.append((record.implementation, record.dtype))
    assert records == [("torch_two", "float32"), ("torch_one", "bfloat16"), ("torch_two", "bfloat16")]


def test_records_come_while_others_are_still_verified(guest, options, monkeypatch, host):
    """What is held back until the last is known is lost when the process is ended meanwhile."""
    first_given = threading.Event()
    waited = []

    def judged(bench, implementation, dtype, **_):
        if implementation.name == "torch_two":
            waited.append(first_given.wait(20))
        return Unsupported(reason="found")

    monkeypatch.setattr(case_check, "verify", judged)
    monkeypatch.setattr(BENCH, "ensure_adequate", lambda operator: None)
    for _ in verify_all(load([guest(**BOTH)]), ["guest_add"], options(4), host):
        first_given.set()
    assert waited == [True, True]


def test_nothing_more_is_begun_when_a_verification_is_given_up(guest, options, monkeypatch):
    """Ctrl-C in the middle of a hundred verifications side by side waited for all of them, and threw them away."""
    begun = []

    def judged(bench, implementation, dtype, **_):
        begun.append(implementation.name)
        time.sleep(0.3)
        return Unsupported(reason="found")

    monkeypatch.setattr(case_check, "verify", judged)
    monkeypatch.setattr(BENCH, "ensure_adequate", lambda operator: None)
    many = {f"n{number}": BOTH["one"] for number in range(8)}
    with Isolated() as host:
        found = verify_all(load([guest(**many)]), ["guest_add"], options(2), host)
        next(found)
        found.close()
        time.sleep(1.0)
    assert len(begun) <= 4


@pytest.mark.campaign
def test_a_failure_that_cannot_be_shrunk_is_kept(guest, monkeypatch):
    """What the machine lacks for smaller cases is no reason to lose what was found on the first."""
    registry = load([guest(wrong="def run(x, bias):\n    return x - bias\n")])
    with Isolated() as host:
        bench = CaseCache(registry=registry, operator=registry.operator("guest_add"), host=host, device="cpu")

        def nothing_left(*_):
            raise NotNow("no process left")

        monkeypatch.setattr(importlib.import_module("opforge.verify.verification")._Run, "_attempt", nothing_left)
        verdict = verify(bench, registry.implementation("guest_add", "torch_wrong"), "float32", effort=QUICK)
        bench.close()
    assert isinstance(verdict, Mismatch) and verdict.shrunk_from is None


def test_a_case_without_room_is_not_one_that_the_definition_leaves_open(guest, monkeypatch):
    """It was counted among the cases for which the reference is not defined, and passed over."""
    registry = load([guest(**BOTH)])
    bench = CaseCache(registry=registry, operator=registry.operator("guest_add"), host=SimpleNamespace(), device="cpu")
    case = Case(name="c", axes={"rows": 2, "cols": 3}, why="")

    def no_descriptor(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("opforge.verify.cases.case_cache.allocate", no_descriptor)
    with pytest.raises(OSError, match="Too many"):
        bench.prepare_if_defined(case, "float32")


@pytest.mark.parametrize(
    "raised",
    [RuntimeError("CUDA out of memory."), RuntimeError("can't allocate memory"), NameError("slip"), NotNow("later")],
)
def test_what_says_nothing_of_a_case_leaves_it_defined(guest, monkeypatch, raised):
    """Want of torch's memory, a defect of opforge and a machine that lacks something all counted as "not defined"."""
    registry = load([guest(**BOTH)])
    bench = CaseCache(registry=registry, operator=registry.operator("guest_add"), host=SimpleNamespace(), device="cpu")

    def fails(*_):
        raise raised

    monkeypatch.setattr("opforge.verify.cases.case_cache.consult", fails)
    with pytest.raises(type(raised)):
        bench.prepare_if_defined(Case(name="c", axes={"rows": 2, "cols": 3}, why=""), "float32")


def test_a_case_that_is_not_defined_gives_its_memory_back(guest, monkeypatch):
    """Each kept a descriptor until the process ended."""
    registry = load([guest(**BOTH)])
    bench = CaseCache(registry=registry, operator=registry.operator("guest_add"), host=SimpleNamespace(), device="cpu")

    def undefined(*_):
        raise ValueError("not defined for this")

    monkeypatch.setattr("opforge.verify.cases.case_cache.consult", undefined)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the descriptors of this process, by number
    for number in range(20):
        found = bench.prepare_if_defined(Case(name=f"c{number}", axes={"rows": 2, "cols": 3}, why=""), "float32")
        assert found == Undefined("ValueError: not defined for this")
    assert len(os.listdir("/proc/self/fd")) < before + 10  # noqa: PTH208


@pytest.mark.parametrize(
    ("earlier", "words", "kind"),
    [
        (0, "CUDA out of memory.", NotNow),
        (0, "invalid argument", RuntimeError),
        (1, "CUDA out of memory.", RuntimeError),
    ],
)
def test_a_device_that_others_have_filled_blames_no_kernel(earlier, words, kind):
    """Before anything has run in a worker, its kernel cannot have taken the memory; afterwards it may have."""
    executor = Executor()
    executor.next = earlier

    def refuse(device):
        raise RuntimeError(words)

    with pytest.raises(kind, match="no room for 64 bytes" if kind is NotNow else words):
        executor.uploaded(SimpleNamespace(to=refuse, numel=lambda: 64), "cuda")
    executor.bind = lambda *_: executor.uploaded(SimpleNamespace(to=refuse, numel=lambda: 64), "cuda")
    question = Bind(
        homes=(), operator="", implementation="", axes={}, dtype="", scalars={}, device="cpu", config=None, arena={}
    )
    answer = executor.handle(asked(question))
    assert (answer["status"], answer.get("later")) == (("lacks", True) if kind is NotNow else ("failed", None))


def test_what_a_launch_keeps_for_the_next_sample_is_given_back_when_others_want_it(monkeypatch):
    """A definition's graph held 114 GiB of a GPU while the choice that it might have been was looked for."""
    executor, given = Executor(), []
    place = SimpleNamespace(type="cuda")
    executor.rotations[3] = Rotation(lambda: None, SimpleNamespace(device=place), lambda memory: memory)
    executor.rotations[3].replays[1, 1] = lambda: None
    monkeypatch.setattr("opforge.runner.worker.sampling.give_back", given.append)
    assert executor.handle(asked(Spare(launch=3)))["status"] == "ok"
    assert not executor.rotations[3].replays and given == [place]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), NotNow),
        (
            CompilationFailed(
                "The compiler refused the source.\ng++: fatal error: Killed signal terminated program cc1plus"
            ),
            NotNow,
        ),
        (CompilationFailed("k.cu:3: error: no such name"), CompilationFailed),
        (EnvironmentLacks("nvcc is not on PATH"), EnvironmentLacks),
    ],
    ids=["full disk", "killed compiler", "refused source", "no compiler"],
)
def test_a_compiler_that_the_machine_stops_blames_no_source(error, kind, monkeypatch):
    """A full disk was a broken contract of the kernel's."""

    def build(*_):
        raise error

    monkeypatch.setattr(executor_module, "backend", lambda name: SimpleNamespace(build=build))
    executor = Executor(scratch=Path("/nowhere"), limits=SimpleNamespace())
    with pytest.raises(EnvironmentLacks if kind is EnvironmentLacks else kind) as raised:
        executor.seal(SimpleNamespace(backend="cpp", default=None), None, SimpleNamespace(device="cpu"))
    assert type(raised.value) is kind


def test_a_clock_that_cannot_be_looked_at_says_why():
    """It was a KeyError: the probe of the cache takes memory of the device."""
    with pytest.raises(NotNow, match="out of memory"):
        look_at_clocks(SimpleNamespace(request=lambda question: Failed(reason="out of memory")), "cpu")


@pytest.mark.campaign
def test_what_was_verified_is_given_when_asking_further_fails(guest, options, monkeypatch):
    """With --sanitize and --huge, all was lost with the first that could not be asked."""
    monkeypatch.setattr(BENCH, "ensure_adequate", lambda operator: None)
    asked = iter((OSError(errno.ENOMEM, "Cannot allocate memory"), None))

    def sanitized(bench, implementation, dtype, tool, verdict):
        error = next(asked)
        if error is not None:
            raise error
        return Unsupported(reason=tool)

    monkeypatch.setattr(extra_checks, "sanitized", sanitized)
    registry = load([guest(**BOTH)])
    found = []
    with pytest.raises(OSError, match="Cannot allocate"), Isolated() as host:
        records = verify_all(
            registry, ["guest_add"], BenchOptions(**{**vars(options(1)), "dtypes": ("float32",)}), host
        )
        for record in extra_checks.run_extra_checks(registry, records, host, "cpu", sanitize="memcheck"):
            found.append((record.implementation, type(record.verdict).__name__))
    assert found == [("torch_one", "Pass"), ("torch_two", "Unsupported")]


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), 130, "interrupted; what was recorded"),
        (app.Terminated(), 143, "terminated; what was recorded"),
    ],
    ids=["interrupt", "terminate"],
)
def test_an_interrupted_verb_says_so(error, code, words, monkeypatch, capsys):
    """click ends with 130 and not a word."""

    def verb():
        raise error

    monkeypatch.setattr("opforge.cli.listing.list_operators", verb)
    monkeypatch.setattr(sys, "argv", ["opforge", "list"])
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == code and words in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [EOFError("Ran out of input"), BrokenPipeError(errno.EPIPE, "Broken pipe")],
    ids=lambda error: type(error).__name__,
)
def test_a_broken_pipe_inside_is_not_a_silent_failure(error, monkeypatch):
    """click ends with 1, the code of a failed verdict, and without a word, on any broken pipe: one to a compiler or a
    worker too.
    """

    def verb():
        raise error

    monkeypatch.setattr("opforge.cli.listing.list_operators", verb)
    monkeypatch.setattr(sys, "argv", ["opforge", "list"])
    with pytest.raises(RuntimeError, match=type(error).__name__):
        app.main()


def test_sigterm_puts_everything_away(tmp_path):
    """As a batch system ends a job: with a word, a code of its own, and no folder left."""
    code = """
        import sys, time
        from opforge.cli import app, listing

        def verb():
            print("here", flush=True)
            time.sleep(60)

        listing.list_operators = verb
        sys.argv = ["opforge", "list"]
        app.main()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "here\n"
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143 and said == "opforge: terminated; what was recorded until now is kept\n"


@pytest.mark.campaign
@pytest.mark.parametrize("verb", ["verify", "bench"])
def test_the_verb_shows_what_it_found_before_it_fails(verb, guest, tmp_path, monkeypatch, capsys):
    """A disk that is full at the last record is no reason to keep the others to oneself."""
    from opforge.store import Store

    add, added = Store.add, []

    def full(store, records):
        if added:
            raise EnvironmentLacks("No space is left for the store")
        add(store, records)
        # a bench tells the fastest first, whichever that is
        added.extend(record.implementation for record in records)

    monkeypatch.setattr(Store, "add", full)
    monkeypatch.setattr(BENCH, "ensure_adequate", lambda operator: None)
    monkeypatch.chdir(tmp_path)
    more = ["--budget", "0.05"] if verb == "bench" else []
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "opforge",
            "--home",
            str(guest(**BOTH)),
            verb,
            "guest_add",
            "--quick",
            "--backend",
            "torch",
            "--dtype",
            "float32",
            *more,
        ],
    )
    with pytest.raises(SystemExit) as ended:
        app.main()
    out, err = capsys.readouterr()
    assert ended.value.code == 3 and "No space is left" in err and added[0] in out
