"""Code of a user's own, run in a process of its own: what opforge asks it to compute comes back as JSON.

One process imports torch and runs nothing; each question is answered in a fork of it, which ends. Nothing that a task's
file does to its process (globals, patches, threads) reaches this one, or the next task. The environment's keys are not
passed on. The process stands behind walls (walls.tool): it has no network, sees no other process and writes to a folder
of its own alone. It reads what its user may, since a task may lie anywhere.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opforge.core.language.errors import UsageError
from opforge.runner.walls.sandbox import environment_for_workers
from opforge.walls import tool

LIMIT_S = 120.0
"""Wall seconds of one question: a trace takes one or two."""
START_LIMIT_S = 300.0
"""Importing torch takes 2 s, on a busy machine ten times as long."""
LARGEST_ANSWER = 4 << 20
ON_THE_WAY_S = 5.0
"""A fork and an answer's way take a tenth of a second."""

_lock = threading.Lock()
SERVER_S = 3600
"""Processor seconds of the process that is forked from: importing takes ten."""
_server: subprocess.Popen[bytes] | None = None
_folder = ""


def apart(function: Callable[..., Any], *arguments: Any, limit_s: float = LIMIT_S) -> Any:
    """What `function(*arguments)` returns, computed in a process of its own.

    function   at the top level of a module of opforge; arguments and result are JSON
    Raises UsageError as the function does, and where its process ends, or takes longer than `limit_s`.
    """
    question = {"function": f"{function.__module__}:{function.__qualname__}", "arguments": arguments, "limit": limit_s}
    with _lock:
        process = _running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
            answer = json.loads(_line(process, limit_s + ON_THE_WAY_S))
        except (OSError, ValueError, TimeoutError, EOFError) as error:
            _end()
            raise UsageError(
                f"The process that was to run {_what(arguments)} gave no answer ({type(error).__name__}). Run it by "
                "itself with Python to see what it does."
            ) from error
    if "told" in answer:
        raise UsageError(answer["told"])
    if "ended" in answer:
        raise UsageError(
            f"{_what(arguments)} ended its process ({answer['ended']}). Run it by itself to see what it does."
        )
    return answer["value"]


def _what(arguments: tuple[Any, ...]) -> str:
    """The first argument says where the code is from."""
    return str(arguments[0])[:200] if arguments else "the code"


def _running() -> subprocess.Popen[bytes]:
    global _server, _folder
    if _server is None or _server.poll() is not None:
        _folder = tempfile.mkdtemp(prefix="opforge-apart-")
        environment = environment_for_workers(os.environ.items()) | {"HOME": _folder, "TMPDIR": _folder}
        command = [sys.executable, "-P", "-m", "opforge.forge.read.apart"]
        # -P keeps the working directory off the module path
        _server = subprocess.Popen(
            tool.behind_walls(command, Path(_folder), readable=None, memory_bytes=0, processor_s=SERVER_S),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        _line(_server, START_LIMIT_S)
    return _server


def _line(process: subprocess.Popen[bytes], limit_s: float) -> bytes:
    """The next line that it writes. Raises TimeoutError, EOFError, ValueError for one that never ends."""
    assert process.stdout is not None
    ends, found = time.monotonic() + limit_s, b""
    while not found.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, ends - time.monotonic()))
        if not ready:
            raise TimeoutError
        part = os.read(process.stdout.fileno(), 1 << 16)
        if not part:
            raise EOFError
        found += part
        if len(found) > LARGEST_ANSWER:
            raise ValueError("too long")
    return found


@atexit.register
def _end() -> None:
    """End the server and what it has forked."""
    global _server
    if _server is not None:
        with contextlib.suppress(OSError):
            os.killpg(_server.pid, signal.SIGKILL)
        _server.wait()
        for pipe in (_server.stdin, _server.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        _server = None
        shutil.rmtree(_folder, ignore_errors=True)


def _answered(question: dict[str, Any]) -> dict[str, Any]:
    """What a question's function returns, or why not."""
    module, _, name = question["function"].partition(":")
    try:
        return {"value": getattr(importlib.import_module(module), name)(*question["arguments"])}
    except UsageError as error:
        return {"told": str(error)}
    except BaseException as error:  # noqa: BLE001 - whatever the user's code raises, its exit too: it is told
        words = " ".join(str(error).split())[:300]
        return {
            "told": f"{_what(question['arguments'])}: {type(error).__name__}: {words}. Mend it, or write its formula."
        }


def _forked(question: dict[str, Any]) -> dict[str, Any]:
    """The answer of a fork of this process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # the pipes to opforge among them
        os.closerange(3, writing)
        os.closerange(writing + 1, 1024)
        limit = int(question["limit"]) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        with os.fdopen(writing, "wb") as out:
            out.write(json.dumps(_answered(question)).encode())
        os._exit(0)
    os.close(writing)
    found = b""
    with os.fdopen(reading, "rb") as source:
        while len(found) <= LARGEST_ANSWER and (part := source.read(1 << 16)):
            found += part
    _, status = os.waitpid(child, 0)
    try:
        answer = json.loads(found)
    except ValueError:
        code = os.waitstatus_to_exitcode(status)
        return {"ended": f"signal {-code}" if code < 0 else f"exit code {code}"}
    return answer if isinstance(answer, dict) and len(answer) == 1 else {"ended": "an answer that is none"}


def main() -> None:
    """Questions from standard input, answers to standard output, until it closes."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # what the user's code prints is no answer
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    import torch

    # a process with threads must not be forked
    torch.set_num_threads(1)
    # what an export imports, once for all forks
    torch.export.export(torch.nn.ReLU(), (torch.ones(2, 3),), strict=False)
    answers.write(b"ready\n")
    answers.flush()
    for line in questions:
        answers.write(json.dumps(_forked(json.loads(line))).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
