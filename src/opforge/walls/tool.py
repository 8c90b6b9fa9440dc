"""Runs a tool on an author's text behind walls: compilers, assemblers, disassemblers, and Python that compiles.

The tool reads its own toolchain and what it is given, writes to a folder of its own and to the places it is given,
has no network, no other process to name, standard input that is empty, and a limit on time and memory. Each wall
stands where the kernel of the operating system allows it; an option that was overlooked does no harm there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from opforge.walls import places
from opforge.walls.environment import for_toolchains

INSIDE = Path(__file__).resolve().parent / "inside.py"
PROCESSOR_S = 150
"""Processor time of one process of a tool: the slowest compiler of opforge's own kernels takes 40 s, 110 s of wall time
on 2 cores that ten processes share (attention_decode/cpp_blocked, 2026-11-29).
"""
WALL_S = 240.0
"""Wall time of a tool: less than the 300 s that a worker is waited for, so that the reason is told."""
STALL_S = 20.0
"""A tool that takes no processor time for so long waits for what will never come; a busy machine gives it some."""
LOOK_S = 2.0
LEAST_MEMORY = 8 << 30
FILE_BYTES = 2 << 30


_running: set[int] = set()


def running() -> tuple[int, ...]:
    """The process ids of the tools that work for this process."""
    return tuple(_running)


class TookTooLong(Exception):
    """A tool was ended; the message says which limit of `limit_s` seconds it met. `crowded`: by the wall clock alone,
    before it had its processor time, so others had the processors.
    """

    def __init__(self, message: str, *, limit_s: float, crowded: bool = False) -> None:
        super().__init__(message)
        self.limit_s = limit_s
        self.crowded = crowded


def behind_walls(
    command: Sequence[str | Path],
    folder: Path,
    *,
    writable: Sequence[Path] = (),
    readable: Sequence[Path] | None = (),
    hidden: Sequence[Path] = (),
    memory_bytes: int | None = None,
    processor_s: int = PROCESSOR_S,
) -> list[str]:
    """The command line that shuts itself in and becomes `command`.

    folder    the tool's own, for its temporary files
    writable  where else it may write; readable: what it may read besides its toolchain and those (None: all)
    """
    words = [str(word) for word in command]
    given = [
        *(f"writable={path.absolute()}" for path in (folder, *writable)),
        *(
            f"readable={path.absolute()}"
            for path in ((*places.of_toolchain(words[0]), *readable) if readable is not None else ())
        ),
        *(f"hidden={path.absolute()}" for path in hidden),
        f"memory_bytes={_memory() if memory_bytes is None else memory_bytes}",
        f"processor_s={processor_s}",
        f"file_bytes={FILE_BYTES}",
    ]
    # inside, nothing is looked for any more: even an import may be refused
    words[0] = shutil.which(words[0]) or words[0]
    # a virtual environment's parent: one file less to read, and the standard library is all that is used
    python = getattr(sys, "_base_executable", "") or sys.executable or "python3"
    return [python, "-I", "-S", str(INSIDE), *given, "--", *words]


def run(
    command: Sequence[str | Path],
    *,
    writable: Sequence[Path] = (),
    readable: Sequence[Path] = (),
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    wall_s: float = WALL_S,
    memory_bytes: int | None = None,
    processor_s: int = PROCESSOR_S,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a tool on an author's text, as subprocess.run does, behind walls. Its folder for temporary files lies in the
    first writable one, and is removed.

    environment  variables beside those of toolchains
    Raises TookTooLong, and CalledProcessError where `check` is set.
    """
    place = writable[0] if writable else None
    with tempfile.TemporaryDirectory(prefix=".tool-", dir=place, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        line = behind_walls(
            command,
            folder,
            writable=writable,
            readable=readable,
            memory_bytes=memory_bytes,
            processor_s=processor_s,
        )
        own = {"HOME": name, "TMPDIR": name, "USER": "opforge", "LOGNAME": "opforge"}
        variables = {**for_toolchains(os.environ.items()), **(environment or {}), **own}
        with subprocess.Popen(
            line,
            cwd=cwd or folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # what it starts is killed with it
            start_new_session=True,
        ) as process:
            _running.add(process.pid)
            try:
                out, err = _awaited(process, Path(str(command[0])).name, wall_s)
            finally:
                # one that has ended is left alone; whoever is interrupted waits for none
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.kill()
                _running.discard(process.pid)
    if process.returncode == 128 + signal.SIGXCPU or "CPU time limit exceeded" in err:
        told = _told(Path(str(command[0])).name, f"{processor_s} s of processor time")
        raise TookTooLong(told, limit_s=processor_s)
    done = subprocess.CompletedProcess([str(word) for word in command], process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _awaited(process: subprocess.Popen[str], name: str, wall_s: float) -> tuple[str, str]:
    """What it wrote. Raises TookTooLong where it has had its time, or has slept for long."""
    started = changed = time.monotonic()
    spent = -1.0
    while True:
        try:
            return process.communicate(timeout=LOOK_S)
        except subprocess.TimeoutExpired:
            now, spent_now = time.monotonic(), _processor_s(process.pid)
            if spent_now != spent:
                spent, changed = spent_now, now
            stalled, late = now - changed > STALL_S, now - started > wall_s
        if stalled or late:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            words = f"{STALL_S:g} s without any processor time, waiting for something" if stalled else f"{wall_s:g} s"
            crowded = not stalled and spent / os.sysconf("SC_CLK_TCK") < wall_s / 2
            raise TookTooLong(_told(name, words), limit_s=STALL_S if stalled else wall_s, crowded=crowded)


def _told(name: str, limit: str) -> str:
    return (
        f"{name} was ended: it took more than {limit}, the limit of one compilation (walls/tool.py says why). Split "
        "the source into smaller kernels, or instantiate fewer of its templates."
    )


def _processor_s(session: int) -> float:
    """Processor time of the processes of a session; that of those which have ended counts once their parents have
    waited for them.
    """
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _memory() -> int:
    """Address space of one process: half of the machine's memory, and 8 GiB at least, which ptxas may need."""
    return int(max(LEAST_MEMORY, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2))
