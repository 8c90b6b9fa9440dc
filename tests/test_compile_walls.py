"""Compilers and other tools that read an author's text run behind walls: an option that was overlooked does no harm."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from opforge.backends import native
from opforge.core.evidence.verdict import Timeout
from opforge.core.language.errors import NotNow
from opforge.report.record_text import describe
from opforge.runner import WorkerLate
from opforge.runner.walls.tamper_detection import Snapshot
from opforge.runner.wire.messages import Bind
from opforge.runner.wire.protocol import asked, decoded
from opforge.runner.worker.executor import Executor
from opforge.verify.judging.exception_verdicts import verdict_of
from opforge.verify.judging.run_case import first_run
from opforge.walls import landlock, tool

pytestmark = [
    pytest.mark.skipif(not landlock.landlock_version(), reason="this kernel has no Landlock"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]


BIND = Bind(
    homes=(), operator="x", implementation="cpp_x", axes={}, dtype="float32", scalars={}, device="cpu", config=None,
    arena={},
)  # fmt: skip


@pytest.fixture
def places(tmp_path):
    """A folder to build in, one of the kernel's, and a secret beside both."""
    for name in ("build", "kernel"):
        (tmp_path / name).mkdir()
    (tmp_path / "secret.h").write_text("int secret;\n")
    return tmp_path


def compiled(places: Path, text: str, *options: str) -> Path:
    """Compile as backends do."""
    source = places / "kernel" / "cpp_x.cpp"
    source.write_text(text)
    native.compile_with(["g++", "-shared", "-fPIC", *options, str(source), "-o", str(places / "build" / "k.so")])
    return places / "build" / "k.so"


def test_a_wrapper_of_the_authors_reaches_nothing(places):
    """The option that began it, past the list, with a payload that the hash covers: the shell that it starts may not
    write or read outside, connect, or see another process.
    """
    outside, payload = places / "outside", places / "kernel" / "payload.h"
    payload.write_text(
        f"exec > {places}/build/said 2>&1\ntouch {outside}\ncat {places}/secret.h\nls {Path.home()} && echo home read\n"
        "echo $(ls /proc | grep -c '^[0-9]') processes\nkill -9 -1\ncat /sys/class/net/*/address\nset\n"
    )
    with pytest.raises(native.CompilationFailed, match=r"left no k\.so"):
        compiled(places, '#include "payload.h"\n', "-wrapper", f"/bin/sh,{payload}")
    said = (places / "build" / "said").read_text()
    assert not outside.exists() and "int secret" not in said and "home read" not in said
    assert int(said.partition(" processes")[0].split()[-1]) <= 6, "processes outside are seen"
    assert "AWS_" not in said and "HOME='" + str(places / "build") in said


@pytest.mark.parametrize(
    "text",
    ['#include "/dev/stdin"\n', '#define NAME "../secret.h"\n#include NAME\n', 'asm(".incbin \\"{secret}\\"");\n'],
)
def test_a_source_reads_only_what_its_hash_covers(places, text):
    """Spelt so that no list finds it; standard input is empty, and nothing is waited for."""
    started = time.monotonic()
    (places / "kernel" / "hidden.h").write_text("int hidden;\n")
    text = text.replace("{secret}", str(places / "secret.h"))
    if "stdin" in text:
        # refused by the list when the file is read; here it is an empty file
        assert compiled(places, text).exists()
    else:
        with pytest.raises(native.CompilationFailed, match="its toolchain, opforge's headers"):
            compiled(places, text)
    assert time.monotonic() - started < 60


def test_a_header_beside_the_file_is_read_where_the_hash_covers_it(places):
    """By name in quotes, and what that includes; the same file included through a macro is refused with the reason."""
    (places / "kernel" / "mine.h").write_text('#include "inner.h"\n')
    (places / "kernel" / "inner.h").write_text("int inner;\n")
    (places / "kernel" / "hidden.h").write_text("int hidden;\n")
    assert compiled(places, '#include "mine.h"\n#include <cmath>\nint x = inner;\n').exists()
    with pytest.raises(native.CompilationFailed, match="those that the kernel's hash covers"):
        compiled(places, '#define NAME "hidden.h"\n#include NAME\n')
    assert [path.name for path in (places / "build").iterdir()] == ["k.so"], "a temporary file is left"


def test_what_waits_for_ever_is_ended_and_told(places, monkeypatch):
    """It takes no processor time: the limit that it met is named, and nothing of it is left."""
    monkeypatch.setattr(tool, "STALL_S", 0.5)
    monkeypatch.setattr(tool, "LOOK_S", 0.2)
    with pytest.raises(tool.TookTooLong, match=r"0\.5 s without any processor time"):
        tool.run(["sleep", "1000"], writable=[places / "build"])
    monkeypatch.setattr(tool, "STALL_S", 100.0)
    with pytest.raises(tool.TookTooLong, match="more than 1 s of processor time"):
        tool.run(["bash", "-c", "while :; do :; done"], writable=[places / "build"], processor_s=1)
    assert list((places / "build").iterdir()) == [] and tool.running() == ()


@pytest.mark.parametrize(("limits", "expected"), [({"STALL_S": 0.5}, 0.5), ({"WALL_S": 0.5, "STALL_S": 9.0}, None)])
def test_a_compilers_limit_is_a_timeout_and_a_crowded_machine_is_none(places, monkeypatch, limits, expected):
    """Not broken: nothing of the kernel has run. Where others had the processors it is not run."""
    for name, value in {"LOOK_S": 0.2, **limits}.items():
        monkeypatch.setattr(tool, name, value)
    run = tool.run
    monkeypatch.setattr(
        tool, "run", lambda words, **options: run(["sleep", "1000"], wall_s=tool.WALL_S, writable=options["writable"])
    )
    source = places / "kernel" / "cpp_x.cpp"
    source.write_text("int x;")

    def bind(question, fds):
        native.compile_with(["g++", str(source), "-o", str(places / "build" / "k.so")])

    executor = SimpleNamespace(before=Snapshot(), bind=bind, source=source)
    message = Executor.handle(executor, asked(BIND))
    answer = decoded(BIND, message)
    worker = SimpleNamespace(close=lambda: None)
    host = SimpleNamespace(isolation="here")
    run_here = SimpleNamespace(
        bench=SimpleNamespace(host=host), implementation=None, case=None, dtype="float32", arena=None, worker=worker
    )
    if expected is None:
        with pytest.raises(NotNow, match=r"not be compiled here within 0\.5 s, while others had the processors"):
            first_run(run_here, answer)
        return
    with pytest.raises(WorkerLate) as late:
        first_run(run_here, answer)
    verdict = verdict_of(late.value, None, "float32", "here")
    assert isinstance(verdict, Timeout) and verdict.compiling and verdict.limit_s == expected
    assert "split the source into smaller kernels" in describe(verdict)


def test_a_killed_parent_leaves_no_tool_behind(places):
    """The kernel of the operating system ends the whole namespace; what lies in the build folder is swept with it."""
    script = (
        "from pathlib import Path; from opforge.walls import tool;"
        f"tool.run(['bash', '-c', 'sleep 987654 & sleep 987654'], writable=[Path({str(places / 'build')!r})])"
    )
    with subprocess.Popen([sys.executable, "-c", script], start_new_session=True) as process:
        while not _sleepers() and process.poll() is None:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while _sleepers() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _sleepers() == []


def _sleepers() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", b"987654"]:
            found.append(path.parent.name)
    return found


def test_a_compiler_that_fails_at_random_is_asked_once_more(places, monkeypatch):
    """Status 4 is g++'s own fault; a killed one says nothing of a kernel: not run, after the second."""
    tries = places / "build" / "tries"
    fake = places / "kernel" / "g++"
    fake.write_text(
        f"#!/bin/sh\necho x >> {tries}\n[ $(wc -l < {tries}) -ge 2 ] && {{ echo fake 1.0; exit 0; }}\nexit 4\n"
    )
    fake.chmod(0o755)
    assert native.compiler_version.__wrapped__(str(fake)) == "fake 1.0"
    tries.unlink()
    (places / "build" / "k.so").touch()
    assert native.compile_with([str(fake), "-o", str(places / "build" / "k.so")])[0] == "fake 1.0\n"
    fake.write_text("#!/bin/sh\nexit 4\n")
    with pytest.raises(NotNow, match="failed twice"):
        native.compiler_version.__wrapped__(str(fake))
    fake.write_text("#!/bin/sh\nexit 137\n")
    with pytest.raises(NotNow, match="was killed twice"):
        native.compile_with([str(fake), "-o", str(places / "build" / "k.so")])
    # that is the host's harm, and this the source's
    fake.write_text("#!/bin/sh\nexit 139\n")
    with pytest.raises(native.CompilationFailed, match="crashed with SIGSEGV, twice"):
        native.compile_with([str(fake), "-o", str(places / "build" / "k.so")])
