"""What kernels print is shown beside their verdict: bounded, and as what it is."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import textwrap
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from opforge.cli import app
from opforge.core.evidence.record import from_json, to_json
from opforge.core.language.printed import MOST_BYTES, MOST_LINES, Printed, printed
from opforge.registry import load
from opforge.report.record_text import printed_lines
from opforge.runner import Isolated
from opforge.runner.parent import watchdog
from opforge.runner.wire.standard_output import Prints
from opforge.workbench import BenchOptions, verify_all

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="buffers and files in memory are asked for as Linux has them"
)

DEFINITION = """
from opforge.core.operator import Case, Operator, TensorSpec
operator = Operator(name="doubled", about="y = 2 x", inputs=(TensorSpec(name="x", shape="n"),),
    outputs=(TensorSpec(name="y", shape="n"),), reference=lambda x: 2 * x, flops="n", dtypes=("float32",),
    cases=(Case(name="small", axes={"n": 64}, why="small"),), implementations=IMPLEMENTATIONS)
"""
TRITON = """
import triton
import triton.language as tl
@triton.jit
def doubled(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    print("in the block", tl.program_id(0))
    tl.device_print("seen by the device", tl.program_id(0))
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)
def launch(x, y):
    doubled[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), 64)
"""
CPP = """
#include "opforge/host.h"
#include <cstdio>
#include <iostream>
static void doubled(opforge::TensorView x, opforge::TensorView y) {
  std::printf("by printf %d\\n", 7);
  std::cout << "by cout " << 8 << "\\n" << std::flush;
  const float* from = opforge::data<float>(x);
  float* to = opforge::data<float>(y);
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = 2 * from[i];
}
OPFORGE_EXPORT(run, doubled)
"""
RIGHT = "def run(x):\n    {}\n    return 2 * x\n"


def home_of(folder: Path, files: dict[str, str]) -> Path:
    """A home with the operator `doubled` and these implementations, by file name."""
    place = folder / "doubled"
    place.mkdir(parents=True)
    for name, text in files.items():
        (place / name).write_text(text)
    names = tuple(name.partition(".")[0] for name in files)
    (place / "op.py").write_text(DEFINITION.replace("IMPLEMENTATIONS", repr(names)))
    return folder


def record_of(folder: Path, files: dict[str, str], names: tuple[str, ...] = ()):
    """The record of a verification of each, by implementation; without `names` torch.compile is left out."""
    registry = load([home_of(folder, files)])
    names = names or tuple(name.partition(".")[0] for name in files)
    with Isolated() as host:
        options = BenchOptions(timed=False, implementations=names, device="cpu")
        return {record.implementation: record for record in verify_all(registry, ["doubled"], options, host)}


@linux
def test_what_is_printed_stands_beside_the_verdict(tmp_path):
    """In every language; it was thrown away, and whoever looks for a mistake prints a value first."""
    records = record_of(
        tmp_path,
        {
            "torch_loud.py": RIGHT.format('print("rows", x.shape[0])'),
            "triton_loud.py": TRITON,
            "cpp_loud.cpp": CPP,
            "torch_quiet.py": RIGHT.format("pass"),
        },
    )
    assert {type(record.verdict).__name__ for record in records.values()} == {"Pass"}, records
    assert records["torch_loud"].printed.text.split("\n")[0] == "rows 64"
    said = records["triton_loud"].printed.text
    assert "in the block" in said and "seen by the device" in said
    said = records["cpp_loud"].printed.text
    assert "by printf 7\nby cout 8" in said
    assert records["torch_quiet"].printed is None and "printed" not in to_json(records["torch_quiet"])
    for record in records.values():
        assert from_json(json.loads(json.dumps(to_json(record)))) == record
        assert len(printed_lines(record)) <= MOST_LINES + 1


@linux
def test_what_was_printed_before_the_end_is_kept(tmp_path, monkeypatch):
    """A crash and a hang are when it is wanted most: no buffer of the process is written then."""
    monkeypatch.setattr(watchdog, "HANG_S", 2.0)
    crash = 'print("before the crash")\n    import os, signal\n    os.kill(os.getpid(), signal.SIGKILL)'
    hang = 'print("before the hang")\n    while True:\n        pass'
    native = CPP.replace("const float* from", "__builtin_trap();\n  const float* from").replace(" << std::flush", "")
    files = {"torch_crash.py": RIGHT.format(crash), "torch_hang.py": RIGHT.format(hang), "cpp_crash.cpp": native}
    records = record_of(tmp_path, files)
    words = {name: (type(record.verdict).__name__, record.printed.text) for name, record in records.items()}
    assert words == {
        "torch_crash": ("Crash", "before the crash"),
        "torch_hang": ("Timeout", "before the hang"),
        "cpp_crash": ("Crash", "by printf 7\nby cout 8"),
    }


HOSTILE = r"""
import os
def run(x):
    print("\x1b[2J\x1b[1;1Hopforge: all kernels passed\r\u202e", '{"status": "ok", "nonce": 1}')
    os.write(1, b'\x00\x00\x00\x0f{"status": "ok"}\xff\x00\n')
    print("é\ud800")
    for number in range(20_000):
        print("line", number)
    return 2 * x
"""


@linux
def test_what_is_printed_is_bounded_and_steers_nothing(tmp_path, monkeypatch):
    """It comes from code that nobody has read: no message between processes, no line of opforge's own, no escape."""
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    monkeypatch.chdir(tmp_path)
    home = home_of(tmp_path / "home", {"torch_loud.py": HOSTILE})
    verb = ["--home", str(home), "verify", "doubled", "--implementation", "torch_loud", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["opforge", *verb])
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code in (0, None), out.getvalue() + err.getvalue()
    shown = out.getvalue().split("doubled/torch_loud float32 printed:\n")[1].split("\n")
    assert len([line for line in shown if line.startswith("    | ")]) == MOST_LINES
    assert shown[0].startswith(r"    | \x1b[2J\x1b[1;1Hopforge: all kernels passed")
    assert shown[1].endswith(r'{"status": "ok"}' + "\ufffd" + r"\x00")
    assert shown[2] == r"    | é\ud800" and shown[3] == "    | line 0"
    assert shown[MOST_LINES].startswith("    … ") and shown[MOST_LINES].endswith(" more lines")
    assert int(shown[MOST_LINES].split()[1].replace(",", "")) >= 19_000
    assert out.getvalue().isprintable() or set(filter(lambda c: not c.isprintable(), out.getvalue())) == {"\n"}


def test_a_first_line_that_never_ends_is_cut():
    """4 KB of one line are enough of it, and that more came is said."""
    assert printed(b"", 0) is None
    said = printed(b"x" * MOST_BYTES, 1)
    assert said == Printed(text="x" * MOST_BYTES + "…")
    assert printed(b"a\nb\n", 2) == Printed(text="a\nb")
    assert printed(b"a\n" * 30, 30) == Printed(text="\n".join("a" * MOST_LINES), more_lines=10)


def test_the_file_is_emptied_and_only_its_beginning_is_kept():
    prints = Prints()
    for _ in range(3):
        os.write(prints.output, b"line\n" * 100_000)
        prints.gather()
        assert os.fstat(prints.output).st_size == 0
    os.write(prints.output, b"tail")
    prints.close()
    said = prints.taken()
    assert said.text.split("\n") == ["line"] * MOST_LINES and said.more_lines == 300_001 - MOST_LINES
    assert prints.taken() is None


@linux
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_nothing_is_written_inside_of_a_timed_sample(unbuffered, monkeypatch):
    """A write is a system call in somebody's time; while samples are taken a line waits in its buffer."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    code = """
        import ctypes, os, sys
        from opforge.runner.wire.standard_output import OwnOutput
        own, libc = OwnOutput(), ctypes.CDLL(None)
        size = lambda: os.fstat(1).st_size
        print("one"); libc.printf(b"two\\n"); by_line = size()
        own.by_line(False)
        print("three"); libc.printf(b"four\\n"); held = size()
        own.flush(); flushed = size()
        own.by_line(True)
        print("five"); libc.printf(b"six\\n")
        print([by_line, held, flushed, size()], file=sys.stderr)
        os._exit(0)
    """
    with os.fdopen(os.memfd_create("out"), "w+") as out:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], stdout=out, stderr=subprocess.PIPE, text=True
        )
        out.seek(0)
        assert out.read() == "one\ntwo\nthree\nfour\nfive\nsix\n"
    assert done.stderr.strip() == "[8, 8, 19, 28]", done.stderr
