"""What is in force around a worker, and what is asked of a time before it is believed."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from opforge.backends.imported_symbols import is_foreign
from opforge.core.definition.operator import Case
from opforge.core.evidence.record import from_json, to_json
from opforge.core.evidence.verdict import Broken, Crash, LibraryFallback, Pass
from opforge.core.language.errors import EnvironmentLacks
from opforge.machine import environment
from opforge.registry import load
from opforge.report import confessions
from opforge.report.walls import weaker_walls
from opforge.runner import InProcess, Isolated
from opforge.runner.walls import sandbox
from opforge.runner.walls.guards import ALL, Limits
from opforge.runner.walls.tamper_detection import replaced, snapshot
from opforge.runner.wire.messages import Sample, Samples
from opforge.runner.worker.arena import Arena
from opforge.runner.worker.dispatch_trace import traced
from opforge.runner.worker.interpreted_stores import Stores
from opforge.runner.worker.write_ledger import Ledger
from opforge.trial import audit, in_row
from opforge.trial.unseen_content import write
from opforge.verify import CaseCache, verify
from opforge.verify.cases.hidden import EXACT
from opforge.verify.judging.fallback import library_calls
from opforge.walls import landlock
from simulated import record

pytestmark = pytest.mark.own_servers

confined = pytest.mark.skipif(
    not landlock.landlock_version() or sandbox.wanted() != "full",
    reason="this kernel has no Landlock, or it was not asked for",
)


@pytest.fixture
def judged(tmp_path):
    """Verdicts on kernels for y = 2 x, given as source."""

    def judge(source, backend="torch", **options):
        folder = tmp_path / "doubled"
        folder.mkdir(exist_ok=True)
        (folder / f"{backend}_guest.py").write_text(textwrap.dedent(source), encoding="utf-8")
        (folder / "op.py").write_text(
            "from opforge.core.operator import Case, Operator, TensorSpec\n"
            'operator = Operator(name="doubled", about="y = 2 x", inputs=(TensorSpec(name="x", shape="n"),), '
            'outputs=(TensorSpec(name="y", shape="n"),),\n'
            '    reference=lambda x: 2 * x, flops="n", dtypes=("float32",), cases=(Case(name="small", axes={"n": '
            '64}, why="small"),),\n'
            f'    implementations=("{backend}_guest",))\n',
            encoding="utf-8",
        )
        registry = load([tmp_path])
        with Isolated(**options) as host:
            bench = CaseCache(
                registry=registry, operator=registry.operator("doubled"), host=host, device="cpu", run_limit_s=20
            )
            try:
                return verify(bench, registry.implementation("doubled", f"{backend}_guest"), "float32", effort=EXACT)
            finally:
                bench.close()

    return judge


def test_the_level_names_what_is_there_and_nothing_else():
    """A record that claims more isolation than there was is worse than none."""
    assert "namespace" not in str(sandbox.Level()) and "not confined" in str(sandbox.Level())
    full = str(sandbox.Level(pid_namespace=True, network_namespace=True, landlock=7))
    assert "process namespace" in full and "no network" in full and "Landlock 7" in full
    assert "no TCP" in str(sandbox.Level(landlock=4)) and "no TCP" not in str(sandbox.Level(landlock=3))


def test_a_server_that_starts_meanwhile_says_nothing_of_the_walls(monkeypatch):
    """Servers are started ahead, in threads: the newest named its own weaker walls in the records of another's
    kernels, 12 of 1050 of a run.
    """
    levels = iter([sandbox.Level(landlock=7, read_only=True), sandbox.Level()])

    def started(environment, python):
        return SimpleNamespace(
            level=next(levels), asked_at=0.0, closed=False, process=SimpleNamespace(poll=lambda: None)
        )

    monkeypatch.setattr("opforge.runner.parent.host.ServerProcess", started)
    host = Isolated()
    assert host.isolation == "worker process"
    host._server({"A": "1"}).asked_at = 1.0
    host._server({"B": "1"})
    assert "Landlock 7" in host.isolation
    assert host._server({"B": "1"}).asked_at == 0.0 and "Landlock 7" in host.isolation


def test_weaker_walls_than_those_of_the_run_are_said():
    """They stood in the page alone, in small print."""
    strong, weak = (
        "worker process, read-only file system, writes confined (Landlock 7)",
        "worker process, writes not confined",
    )
    kept = [record(implementation=f"cpp_{place}") for place in range(3)]
    for item in kept:
        object.__setattr__(item.verdict, "isolation", weak if item is kept[2] else strong)
    assert weaker_walls(kept[:2]) == weaker_walls([kept[2]]) == []
    (told,) = weaker_walls(kept)
    assert told.startswith(
        "softmax/cpp_2 float32 ran behind weaker walls than the others of this run, without: read-only"
    )
    assert "writes confined (Landlock 7); verify it again: opforge verify softmax -i cpp_2" in told
    assert told in confessions(kept)


@confined
def test_confinement_holds_for_this_process_and_its_children(tmp_path):
    """Landlock is inherited: a kernel cannot leave it by starting a program."""
    code = """
        import subprocess, sys
        from pathlib import Path
        from opforge.walls import landlock
        inside, outside = Path(sys.argv[1]), Path(sys.argv[2])
        assert landlock.confine([inside])
        (inside / "a").write_text("a")
        try:
            (outside / "b").write_text("b")
        except PermissionError:
            print("refused")
        print(subprocess.run(["touch", str(outside / "c")], capture_output=True).returncode != 0)
        open("/dev/null", "w").write("x")
    """
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(inside), str(outside)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.split() == ["refused", "True"] and not list(outside.iterdir())


def test_secrets_of_the_environment_do_not_reach_a_worker():
    """Seeds, tokens and the marks of a test run are not a kernel's business."""
    given = {"PATH": "/bin", "API_TOKEN": "secret", "PYTEST_CURRENT_TEST": "t", "OMP_NUM_THREADS": "1", "HOME": "/root"}
    given |= {"TORCH_MODE_OF_MINE": "right", "LANG": "de_DE.UTF-8", "LC_ALL": "right", "TERM": "right"}
    assert sandbox.environment_for_workers(given.items()) == {
        "PATH": "/bin",
        "OMP_NUM_THREADS": "1",
        "LANG": "C.UTF-8",
        **sandbox.KEPT_MEMORY,
    }
    set_here = environment("cpu", environ={"OMP_WAIT_POLICY": "active", "TORCH_MODE_OF_MINE": "right"}).facts
    assert set_here["env.OMP_WAIT_POLICY"] == "active" and not any("OF_MINE" in name for name in set_here)


def test_a_variable_of_ones_own_reaches_no_kernel(judged, monkeypatch):
    """A kernel that is another one where a variable is set was right when it was verified, and wrong when timed."""
    monkeypatch.setenv("OMP_MODE_OF_MINE", "wrong")
    monkeypatch.setenv("TORCH_MODE_OF_MINE", "wrong")
    verdict = judged("""
        import ctypes, os, subprocess
        mode = [os.environ.get("OMP_MODE_OF_MINE"), os.getenv("TORCH_MODE_OF_MINE")]
        find = ctypes.CDLL(None).getenv
        find.restype = ctypes.c_char_p
        mode += [find(b"TORCH_MODE_OF_MINE"), open("/proc/self/environ").read().count("MODE_OF_MINE") or None]

        def run(x):
            return (2 if mode == [None] * 4 else 3) * x
    """)
    assert isinstance(verdict, Pass), verdict
    assert all(is_foreign(name) for name in ("getenv", "secure_getenv", "environ", "__environ"))


def test_a_worker_runs_in_a_folder_of_its_own(judged):
    """Files of the directory in which opforge was started are not written, and HOME holds nothing."""
    verdict = judged(f"""
        import os
        assert os.getcwd() == os.environ["HOME"] != {str(Path.cwd())!r} and not os.listdir()

        def run(x):
            open("scratch", "w").close()
            return 2 * x
    """)
    assert isinstance(verdict, Pass), verdict


def test_memory_beyond_the_limit_is_a_verdict(judged):
    """On a shared machine the kernel's own out-of-memory killer would choose somebody else."""
    verdict = judged(
        "def run(x):\n    kept = [bytearray(64 << 20) for _ in range(40)]\n    return 2 * x\n",
        limits=Limits(memory_bytes=256 << 20),
    )
    # the system refuses the memory, or whoever watches the worker comes first
    words = verdict.reason if isinstance(verdict, Broken) else verdict.stderr if isinstance(verdict, Crash) else ""
    assert "MemoryError" in words or "256 MiB are allowed" in words, verdict


def test_a_library_behind_another_backend_is_a_matter_of_policy(judged):
    """It is right, so it is no failure; it is not what it says, so it is never timed."""
    pytest.importorskip("triton")
    verdict = judged("import torch\n\ndef launch(x, y):\n    torch.mul(x, 2, out=y)\n", backend="triton")
    assert isinstance(verdict, LibraryFallback) and verdict.evidence == ("aten.mul.out (1 time)",)
    assert from_json(to_json(verdict)) == verdict


def test_moving_data_is_no_computation():
    """A launcher may allocate, view, copy and convert."""
    counts = traced(
        lambda: torch.empty(4, 4).zero_().t().contiguous().to(torch.float16).view(2, 8).copy_(torch.ones(2, 8))
    )
    assert counts and library_calls(counts) == ()
    assert library_calls(traced(lambda: torch.ones(2, 2) @ torch.ones(2, 2))) == ("aten.mm.default (1 time)",)


def test_a_replaced_clock_is_noticed(monkeypatch):
    """Whoever replaces time.perf_counter has a reason."""
    import time

    before = snapshot()
    assert replaced(before) == []
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    assert replaced(before) == ["time.perf_counter"]


def test_guards_travel_by_name():
    """The red team takes one guard away in another process."""
    lowered = ALL.without("freeze", "trace")
    assert lowered.lowered() == ["trace", "freeze"] and type(ALL).from_lowered(lowered.lowered()) == lowered


@pytest.mark.parametrize(("factor", "believed"), [(1.0, True), (0.1, False)])
def test_a_claim_below_the_parents_clock_is_not_believed(factor, believed):
    """A worker that divides its samples by ten is found by whoever waited for them."""
    import time

    def ask(question):
        began = time.perf_counter()
        time.sleep(1e-3 * question.batch)
        return Samples(samples=(factor * (time.perf_counter() - began) / question.batch,), batch=question.batch)

    candidate = SimpleNamespace(ask=ask, launch=1, timer="host")
    assert (audit.understated(candidate, SimpleNamespace(median_s=1e-3 * factor)) is None) == believed


def test_a_wait_for_a_processor_accuses_nobody():
    """On a busy machine a worker waits for its turn before it begins: 0.1 s, whatever was asked."""
    import time

    def ask(question):
        time.sleep(0.1 + 1e-3 * question.batch)
        return Samples(samples=(1e-3,), batch=question.batch)

    assert audit.understated(SimpleNamespace(ask=ask, launch=1, timer="host"), SimpleNamespace(median_s=1e-3)) is None


@pytest.mark.parametrize("keeps", [False, True])
def test_an_answer_that_is_kept_is_faster_the_second_time(keeps):
    """A cache by a hash of all inputs is always right: only time gives it away."""
    arena = Arena.allocate(
        [("x", "input", "float32", (64, 64), "contiguous"), ("y", "output", "float32", (64, 64), "contiguous")]
    )
    x = arena.tensor("x")
    x.copy_(torch.randn(64, 64))
    arena.tensor("y").zero_()
    values, first, seen = set(x.flatten().tolist()), x.clone(), []

    def ask(question):
        # whatever was written: the host is ahead of a device whose time is asked
        assert question.apart == bool(question.written)
        content = x.tolist()
        known = content in seen
        seen.append(content)
        return Samples(samples=(1e-4 if keeps and known else 1e-3,), batch=1)

    try:
        words = audit.remembered(SimpleNamespace(ask=ask, launch=1, timer="host"), SimpleNamespace(arena=arena))
        assert (words is not None) == keeps
        assert set(x.flatten().tolist()) == values and not torch.equal(x, first)
        # blocks of the output hold what stands for "not written"
        assert torch.isnan(arena.tensor("y")).any()
    finally:
        arena.close()


def test_what_an_interpreter_stored_is_known_to_the_byte():
    """Masked lanes store nothing; an atomic operation stores; what lies outside of a tensor is another's."""
    numpy = pytest.importorskip("numpy")
    kept = Stores()
    base, lanes = 4096, numpy.array([[4096, 4100], [4104, 8192]], dtype=numpy.uint64)
    kept.kept.append((lanes, numpy.array([[True, False], [True, True]]), 4))
    kept.kept.append((numpy.array([4110], dtype=numpy.uint64), None, 2))
    assert kept.written(base, 20).nonzero().flatten().tolist() == [0, 1, 2, 3, 8, 9, 10, 11, 14, 15]


@pytest.mark.parametrize("beside", [False, True])
def test_memory_that_changes_during_a_launch_without_a_store_is_somebody_elses(beside):
    """A profiler, a signal's handler or an object's method may write while a kernel is interpreted."""
    y, kept = torch.zeros(4), Stores()
    book = Ledger([y], threads=99)
    y[:2] = 1.0
    kept.kept.append(([y.data_ptr(), y.data_ptr() + 4], None, 4))
    if beside:
        y[3] = 1.0
    book.ran([y], kept)
    assert bool(book.evidence) == beside
    book.check([y], "afterwards")
    assert bool(book.evidence) == beside


@pytest.mark.parametrize("works_on", [False, True])
def test_an_answer_that_comes_after_the_call_is_found_however_late_the_worker_is_stopped(works_on):
    """On a busy machine milliseconds lie between the end of a call and the stop of its process, enough for a thread."""
    registry = load([Path(__file__).parent / "redteam" / "home"])
    operator = registry.operator("rt_relu")
    cases = CaseCache(registry=registry, operator=operator, host=InProcess(), device="cpu")
    prepared = cases.prepare(Case(name="one", axes={"shape": (64, 64)}, why="plain"), "float32")
    unseen = cases.twins(prepared)
    arena = prepared.arena

    def ask(question):
        for offset, *values in question.places:
            content = values[question.contents[-1]]
            arena.bytes()[offset : offset + len(content)] = torch.tensor(list(content), dtype=torch.uint8)
        early = arena.checksum()
        arena.tensor("y").copy_(arena.tensor("x").relu())
        left = early if works_on else arena.checksum()
        return Samples(samples=(1e-5,) * len(question.contents), batch=1, left=left)

    candidate = SimpleNamespace(ask=ask, launch=1, timer="host", inaccurate="")
    try:
        found = audit.in_row(candidate, 1e-5, unseen, operator, "none")
        assert (isinstance(found, Broken) and "after the call had returned" in found.reason) if works_on else not found
    finally:
        cases.close()


@pytest.mark.parametrize(
    ("apart_s", "row_s", "believed"), [(60e-6, 4e-6, False), (60e-6, 55e-6, True), (9e-6, 3e-6, True)]
)
@pytest.mark.parametrize("batch", [1, 17])
def test_a_call_by_itself_is_held_against_those_in_a_row(batch, apart_s, row_s, believed):
    """A kernel that looks at the device's clock leaves out the work when it was called a moment ago: only a call long
    after any other shows
    what one costs. What a graph's launch costs is no evidence."""

    def ask(question):
        assert (question.timer, question.batch, question.cache) == ("cuda_graph", 1, "warm")
        return Samples(samples=(apart_s if question.apart else row_s,) * question.count, batch=1)

    candidate = SimpleNamespace(ask=ask, launch=1, timer="cuda_graph", batch=batch)
    assert (audit.undivided(candidate, SimpleNamespace(median_s=row_s)) is None) == believed


@pytest.mark.parametrize(
    ("skips", "disturbed", "words"),
    [(False, 0, None), (True, 0, "some of them do nothing"), (False, 2, None), (True, 2, "some of them do nothing")]
    + [(skips, 99, "not timed: 1e-05 s were measured") for skips in (False, True)],
)
def test_rows_that_are_slow_because_of_somebody_else_accuse_nobody(skips, disturbed, words, monkeypatch):
    """A call takes longer where another kernel comes between two of them, by far: it left out work before, or another
    process has the device now. Rows as they were timed, taken in turn with the others, tell."""
    pauses: list[float] = []
    monkeypatch.setattr(in_row, "time", SimpleNamespace(sleep=pauses.append))

    def ask(question):
        busy = 2.0 if len(pauses) < disturbed else 1.0
        return Samples(samples=(1e-5 * (max(busy, 1.9) if skips and question.places else busy),), batch=1, lead_s=0.0)

    candidate = SimpleNamespace(ask=ask, launch=1, timer="cuda_graph")
    question = Sample(launch=1, timer="cuda_graph", cache="warm", places=((0, b"a", b"b"),))
    prepared = SimpleNamespace(reset=lambda: None)
    found = in_row._slower_on_device(candidate, 1e-5, prepared, question, random.Random(1))
    assert (words in found) if words else found is None
    assert len(pauses) == min(disturbed, in_row.APART_TRIES - 1)


@pytest.mark.parametrize("layout", ["contiguous", "strided"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "float64"])
def test_elements_of_any_format_change_places_or_stay(dtype, layout):
    """Other content is a permutation: values stay within their domain. Whole numbers stay: they may point somewhere."""
    arena = Arena.allocate([("x", "input", dtype, (8, 4), layout), ("i", "input", "int64", (32,), "contiguous")])
    try:
        x, i = arena.tensor("x"), arena.tensor("i")
        x.copy_(torch.arange(32).reshape(8, 4))
        i.copy_(torch.arange(32))
        before, draw = arena.bytes().clone(), random.Random(2)
        write(arena, False, draw)
        assert arena.bytes().equal(before)
        write(arena, True, draw)
        assert not arena.bytes().equal(before) and i.tolist() == [*range(32)]
        kept = torch.arange(32).reshape(8, 4).to(x.dtype).float()
        assert sorted(x.float().flatten().tolist()) == sorted(kept.flatten().tolist())
    finally:
        arena.close()


@pytest.mark.parametrize(("level", "words"), [("full", "OPFORGE_ISOLATION=basic"), ("basic", "opforge doctor")])
def test_a_worker_that_reaches_no_gpu_blames_no_kernel(level, words, monkeypatch):
    """Inside namespaces a driver may refuse: that is the machine's verdict, not the kernel's."""
    from opforge.runner.walls.sandbox import require

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("OPFORGE_ISOLATION", level)
    with pytest.raises(EnvironmentLacks, match=words):
        require("cuda")
    require("cpu")
