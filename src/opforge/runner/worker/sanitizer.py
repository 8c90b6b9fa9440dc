"""compute-sanitizer around a process that runs a few cases of one kernel, and its findings as values.

Every tensor is an allocation of its own there, with nothing behind it: an access past an end that would meet a
neighbour's memory elsewhere meets none here.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opforge.core.language.errors import EnvironmentLacks
from opforge.runner.walls.sandbox import environment_for_workers

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
PROGRAM = "compute-sanitizer"
PLACES = ("$CUDA_HOME/bin", "/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer")
INSTALL = "it comes with the CUDA toolkit (apt-get install cuda-sanitizer-13-0); put its folder on PATH"
MOST_FINDINGS = 50
MARK = "opforge-case:"

_HEAD = re.compile(r"^========= (\S.*)$")
_DETAIL = re.compile(r"^=========\s{2,}(\S.*)$")
_NO_FINDING = re.compile(
    r"COMPUTE-SANITIZER|SUMMARY|Target application|Program hit|Saved host backtrace|This tool is deprecated"
    r"|Internal Sanitizer Error|print-limit|were not printed|No attachable"
    r"|Error buffer overflow has been detected|errors were skipped"
)
_KERNEL = re.compile(r"\bat (?!0x)(.+?)(?:\+(0x[0-9a-f]+))?(?: in (\S+:\d+))?(?: \[.*\])?$")
_THREAD = re.compile(r"by thread (\([^)]*\)) in block (\([^)]*\))")
_ADDRESS = re.compile(r"(0x[0-9a-f]{6,})")


@dataclass(frozen=True, kw_only=True)
class SanitizerFinding:
    """One thing that the tool reports: what, in which kernel, at which source line, by which thread of which block, at
    which address; "" for what it does not say. `against` is the other access of a race, with its place; `more` is what
    it says besides, such as the
    allocation next to the address."""

    case: str
    what: str
    kernel: str
    place: str
    thread: str
    block: str
    address: str
    more: str
    against: str = ""

    def __str__(self) -> str:
        parts = [
            self.what,
            f"in kernel {self.kernel}" if self.kernel else "",
            f"at {self.place}" if self.place else "",
            self.against,
        ]
        parts += [
            f"thread {self.thread} of block {self.block}" if self.thread else "",
            f"address {self.address}" if self.address else "",
            self.more,
        ]
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class Sanitized:
    """What a run under the tool showed.

    done, refused   names of the cases that ran to their end, and (name, reason) of those that the implementation does
                    not take
    stopped         why the run ended early: an exception of the kernel's, a signal, a time limit; "" when it did not
    """

    tool: str
    findings: tuple[SanitizerFinding, ...]
    done: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]
    stopped: str


def program() -> str:
    """Where compute-sanitizer is. Raises EnvironmentLacks, with where it comes from."""
    folders = [os.path.expandvars(place) for place in PLACES if "$" not in os.path.expandvars(place)]
    path = shutil.which(PROGRAM) or next(
        (str(Path(folder) / PROGRAM) for folder in folders if os.access(Path(folder) / PROGRAM, os.X_OK)), None
    )
    if path is None:
        raise EnvironmentLacks(f"{PROGRAM} is not on PATH: {INSTALL}.")
    return path


def sanitize(
    tool: str, job: Mapping[str, Any] | Sequence[Mapping[str, Any]], environment: Mapping[str, str], limit_s: float
) -> Sanitized:
    """Run a job, or some one after another (see `sanitized`), under a tool, in a process group and a folder of its own,
    for at most `limit_s` seconds.

    environment   variables that the job's backend wants. Raises EnvironmentLacks without the program
    """
    command = [
        program(),
        "--tool",
        tool,
        "--target-processes",
        "application-only",
        "--show-backtrace",
        "no",
        "--print-limit",
        str(MOST_FINDINGS),
    ]
    with tempfile.TemporaryDirectory(prefix="opforge-sanitizer-") as folder:
        path, report = Path(folder) / "job.json", Path(folder) / "report.jsonl"
        path.write_text(json.dumps(job), encoding="utf-8")
        env = {
            **environment_for_workers(os.environ.items()),
            **environment,
            "HOME": folder,
            "TMPDIR": folder,
            "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        }
        env["PYTHONPATH"] = os.pathsep.join(
            [
                str(Path(__file__).resolve().parents[3]),
                *(str(Path(entry).resolve()) for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry),
            ]
        )
        for name in ("OPFORGE_CACHE", "OPFORGE_HEADERS"):
            if name in os.environ:
                env[name] = os.environ[name]
        started = subprocess.Popen(
            [*command, sys.executable, "-P", "-m", "opforge.runner.worker.sanitizer_process", str(path), str(report)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            cwd=folder,
            env=env,
            start_new_session=True,
        )
        try:
            output, _ = started.communicate(timeout=limit_s)
            stopped = ""
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            output, _ = started.communicate()
            stopped = f"not done after {limit_s:g} s; it was ended"
        lines = report.read_text(encoding="utf-8").splitlines() if report.is_file() else []
        return _summary(tool, output, [json.loads(line) for line in lines], stopped, started.returncode)


def _summary(tool: str, said: str, told: Sequence[Mapping[str, str]], stopped: str, status: int) -> Sanitized:
    done = tuple(item["case"] for item in told if item["status"] == "done")
    refused = tuple((item["case"], item["reason"]) for item in told if item["status"] == "rejected")
    failed = next((item["reason"] for item in told if item["status"] == "failed"), "")
    ended = any(item["status"] == "end" for item in told)
    if not (stopped or failed or ended):
        last = [line for line in said.splitlines() if line.strip() and MARK not in line][-3:]
        failed = f"it ended with status {status}: {' / '.join(last)[-400:]}"
    return Sanitized(tool=tool, findings=findings(said), done=done, refused=refused, stopped=stopped or failed)


def findings(said: str) -> tuple[SanitizerFinding, ...]:
    """The Findings in what the tool wrote, each under the case whose mark came last before it.

    >>> said = "opforge-case: tail\\n========= Invalid __global__ write of size 4 bytes\\n"
    >>> found = findings(said + "=========     at double(float *)+0xa0 in k.cu:7\\n")
    >>> found[0].case, found[0].kernel, found[0].place
    ('tail', 'double(float *)', 'k.cu:7')
    """
    case, found, block = "", [], list[str]()

    def close() -> None:
        if block and not _NO_FINDING.search(block[0]):
            found.append(_finding(case, block))
        block.clear()

    for line in said.splitlines():
        mark = line.partition(MARK)
        if mark[1]:
            close()
            case = mark[2].strip()
            continue
        head, detail = _HEAD.match(line), _DETAIL.match(line)
        if head:
            close()
            block.append(head[1])
        elif detail and block:
            block.append(detail[1])
        elif line.strip() == "=========":
            close()
    close()
    return tuple(found)


def _finding(case: str, block: Sequence[str]) -> SanitizerFinding:
    accesses = [match for line in block if (match := _KERNEL.search(line))]
    kernel = accesses[0] if accesses else None
    # a race is between two accesses, or more: which they are is the question
    others = [
        f"{match.string[: match.start()].strip(' ,')} {match[3] or match[2] or match[1]}"
        for match in accesses[1:]
        if match.string.startswith("and ")
    ]
    thread = next((match for line in block if (match := _THREAD.search(line))), None)
    address = next((match for line in block[1:] if not _KERNEL.search(line) and (match := _ADDRESS.search(line))), None)
    more = [
        line
        for line in block[1:]
        if not _KERNEL.search(line)
        and not _THREAD.search(line)
        and not line.startswith(("Saved host", "Host Frame", "Device Frame"))
    ]
    return SanitizerFinding(
        case=case,
        what=block[0][: kernel.start()].strip(" ,") if kernel is not None and kernel.string == block[0] else block[0],
        kernel=kernel[1] if kernel else "",
        place=(kernel[3] or "") if kernel else "",
        thread=thread[1] if thread else "",
        block=thread[2] if thread else "",
        address=address[1] if address else "",
        against=", ".join(dict.fromkeys(others)),
        more="; ".join(line.removeprefix("and ").removeprefix("is ") for line in more)[:300],
    )
