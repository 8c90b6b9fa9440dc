"""Plain loops in fresh processes, without the seconds that each would spend on imports: scripts/plain_loop.py as it
stands, in forks of a process that has imported the toolchains and has run nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent / "plain_loop.py"
SAMPLES = 60


class Loop:
    """One plain loop, stopped whenever nothing is asked of it."""

    def __init__(self, pid: int, asks: int, answers: int) -> None:
        self.pid = pid
        self.asks, self.answers = os.fdopen(asks, "w"), os.fdopen(answers)

    def take(self, how: str = "") -> float:
        """Seconds per call now; `how` is the line that the loop is asked by. Raises RuntimeError when the loop has
        ended.
        """
        from opforge.runner.walls import processes

        processes.kill_group(self.pid, signal.SIGCONT)
        try:
            self.asks.write(f"{how}\n")
            self.asks.flush()
            said = self.answers.readline()
        except BrokenPipeError:
            said = ""
        if not said:
            raise RuntimeError("the plain loop has ended; what it said stands above")
        processes.stop(self.pid)
        return float(said)

    def close(self) -> None:
        from opforge.runner.walls import processes

        processes.kill_group(self.pid)
        for file in (self.asks, self.answers):
            with contextlib.suppress(BrokenPipeError):
                file.close()


class Loops:
    """Where plain loops come from. Each is a new process with memory of its own.

    environment   what they start with, besides this process's own and what keeps freed memory (runner.walls.sandbox);
                  what OPFORGE_PRELOAD names is imported before
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        from opforge.runner.walls.sandbox import KEPT_MEMORY

        self.socket, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            env={**os.environ, "OPFORGE_PRELOAD": "torch", **KEPT_MEMORY, **environment},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()

    def loop(self, *arguments: str) -> Loop:
        """A plain loop of an operator's name, an implementation's, a workload's and a dtype; and "cuda", for a GPU."""
        stdin, asks = os.pipe()
        answers, stdout = os.pipe()
        socket.send_fds(
            self.socket, [json.dumps([*arguments[:4], str(SAMPLES), *arguments[4:]]).encode()], [stdin, stdout]
        )
        os.close(stdin)
        os.close(stdout)
        pid = self.socket.recv(32)
        if not pid:
            raise RuntimeError("no plain loop can be started; what went wrong stands above")
        return Loop(int(pid), asks, answers)

    def close(self) -> None:
        self.socket.close()
        self.process.wait()


def become(arguments: Sequence[str], descriptors: Sequence[int]) -> None:
    """Be the plain loop of these arguments. Does not return."""
    from opforge.walls.privileges import PR_SET_PDEATHSIG, prctl

    code = 1
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for place, descriptor in enumerate(descriptors):
            os.dup2(descriptor, place)
            os.close(descriptor)
        sys.argv = [str(SCRIPT), *arguments]
        runpy.run_path(str(SCRIPT), run_name="__main__")
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it was is said, and the process ends
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    os._exit(code)


def main(descriptor: int) -> None:
    """Fork a loop for each message until the other side closes."""
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
    for name in (*os.environ["OPFORGE_PRELOAD"].split(), "opforge.registry", "opforge.runner.worker.launch"):
        if importlib.util.find_spec(name):
            importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    own = socket.socket(fileno=descriptor)
    while True:
        message, descriptors, _, _ = socket.recv_fds(own, 1 << 16, 2)
        if not message:
            return
        pid = os.fork()
        if pid == 0:
            own.close()
            become(json.loads(message), descriptors)
        for number in descriptors:
            os.close(number)
        own.send(str(pid).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]))
