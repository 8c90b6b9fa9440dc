"""The parent's end of a worker: one question at a time, one answer, and the watch over the process meanwhile."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from opforge.core.language import spans
from opforge.core.language.errors import NotNow
from opforge.core.language.printed import Printed
from opforge.runner.parent.forkserver_client import END_LIMIT_S, ServerProcess
from opforge.runner.parent.watchdog import Watchdog
from opforge.runner.walls import processes, senders
from opforge.runner.walls.guards import ALL, Guards, Limits
from opforge.runner.walls.process_limits import changed, limits_of, privileged
from opforge.runner.wire.channel import Closed, Late, close_all, receive, send
from opforge.runner.wire.messages import TIMED, A, Bind, Failure, LaunchBound, Question, Sample, Samples, Seen
from opforge.runner.wire.protocol import Malformed, asked, decoded, phase_of
from opforge.runner.wire.standard_output import Prints, nameless_file
from opforge.runner.worker.executor import Executor
from opforge.walls.landlock import landlock_version

STDERR_KEPT = 8000
"""Bytes of what a worker wrote last, for the verdict: a traceback, or a compiler's last words."""
MOST_PHASES = 10_000
"""How often a worker may begin and end compiling in one call: a search over every config of a kernel has hundreds."""
SERVER_GONE = "the process that workers come from was ended while this one ran, and it with it"
LAST_WORDS_S = 0.2
"""What a worker said last may still be on its way when it has ended."""


class WorkerDied(Exception):
    """The worker ended without an answer. `status` is its exit code (negative: a signal), `stderr` the end of what it
    wrote.

    struck   it was sent a signal that no fault of its own raises, or whatever workers come from was ended: once more,
             in a new worker, tells whether the kernel is to blame
    """

    def __init__(self, status: int, stderr: str, *, struck: bool = False) -> None:
        super().__init__(f"worker ended with status {status}")
        self.status = status
        self.stderr = stderr
        self.struck = struck


class ServerDied(WorkerDied):
    """The process that workers come from was ended, and a worker with it: that says nothing of a kernel."""


class WorkerLate(Exception):
    """No answer within the limit; the worker was ended. `compiling`: while a compiler ran, it said. `slow`: an
    interpreter that got on, and nothing says that the kernel hangs.
    """

    def __init__(self, limit_s: float, *, compiling: bool = False, slow: bool = False) -> None:
        super().__init__(f"no answer within {limit_s:g} s")
        self.limit_s = limit_s
        self.compiling = compiling
        self.slow = slow


class Outsized(Exception):
    """The worker took more memory or started more processes than it may."""


class Worker(Protocol):
    """One place where kernels run."""

    def request(self, question: Question[A], fds: Sequence[int] = (), limit_s: float = 60.0) -> A | Failure:
        """The worker's answer, with descriptors beside the question. Raises WorkerDied or WorkerLate, after which the
        worker is gone.
        """

    def printed(self) -> Printed | None:
        """What it printed since this was asked last, its beginning; None for nothing, or where it is not known."""

    def compiled_s(self) -> float:
        """Seconds that compilers were seen to take inside of its calls since this was asked last."""

    def struck(self) -> WorkerDied | None:
        """How it ended, where a signal from outside did that."""

    def close(self) -> None:
        """End it."""


class LocalWorker:
    """This process itself."""

    def __init__(self, guards: Guards = ALL) -> None:
        self.executor = Executor(guards=guards)

    def request(self, question: Question[A], fds: Sequence[int] = (), limit_s: float = 60.0) -> A | Failure:
        try:
            return decoded(question, self.executor.handle(asked(question), [os.dup(fd) for fd in fds]))
        except Malformed as error:
            raise WorkerDied(-signal.SIGKILL, str(error)) from error

    def printed(self) -> Printed | None:
        # it went wherever this process prints
        return None

    def compiled_s(self) -> float:
        return 0.0

    def struck(self) -> WorkerDied | None:
        return None

    def close(self) -> None:
        for _, arena, _ in self.executor.launches.values():
            arena.close()
        self.executor.launches.clear()


class ForkedWorker:
    """A process forked from a server that has the toolchain loaded, with a process group, a folder and limits of its
    own.

    Whatever it sends is treated as foreign: an answer that is malformed, or not to the question asked, is the end of
    it. It is stopped (SIGSTOP) whenever nothing is asked of it, so that no thread of it works while the clock of
    another runs or after its own answer was taken.
    """

    @spans.spanned(lambda self, server, limits, guards: ("fork worker", "", ""))
    def __init__(self, server: ServerProcess, limits: Limits, guards: Guards) -> None:
        self.server = server
        self.guards = guards
        self.limits = limits
        self.sock, theirs = socket.socketpair()
        self.output = nameless_file()
        self.prints = Prints()
        self.pid = self.inner = self.first = 0
        self.arena_bytes = 0
        self.used: processes.Usage | None = None
        self.scratch = ""
        self.died: float | None = None
        self.gone: WorkerDied | WorkerLate | None = None
        with contextlib.closing(theirs), contextlib.ExitStack() as undo:
            undo.callback(os.close, self.output)
            undo.callback(self.prints.close)
            undo.callback(self.sock.close)
            born = server.spawn(theirs, (self.prints.output, self.output), self.sock, limits, guards)
            self.inner, self.scratch, self.pid, self.first = born.inner, born.scratch, born.pid, born.first
            self.process_limits = limits_of(self.pid) if guards.process_limits else None
            self.watchdog = Watchdog(self.pid)
            self.born_bytes = processes.memory_bytes(self.pid)
            self.born_kills = senders.ended_for_memory()
            self._stop()
            # it lives: nothing is taken back
            undo.pop_all()

    @spans.spanned(lambda self, question, fds=(), limit_s=60.0: (question.do, "", f"worker {self.pid}"))
    def request(self, question: Question[A], fds: Sequence[int] = (), limit_s: float = 60.0) -> A | Failure:
        if self.sock.fileno() < 0:
            # its descriptors are closed, and may be another one's by now. Whoever took its end for an answer that says
            # little, and goes on, is told the end again
            raise self.gone or WorkerDied(-signal.SIGKILL, "it had been ended before it was asked")
        try:
            return self._request(question, fds, limit_s)
        except (WorkerDied, WorkerLate) as error:
            # without its traceback, whose frames would keep this worker and its descriptors
            self.gone = type(error).__new__(type(error), *error.args)
            vars(self.gone).update(vars(error))
            raise

    def _request(self, question: Question[A], fds: Sequence[int], limit_s: float) -> A | Failure:
        self.server.asked_at = time.monotonic()
        nonce = secrets.randbits(52)
        if question.do in TIMED:
            self._as_it_was()
        self.arena_bytes += int(question.arena["size"]) if isinstance(question, Bind) else 0
        self.watchdog.begin(question, self.arena_bytes, limit_s)
        sampled = isinstance(question, Sample)
        recording = {"spans": True} if isinstance(question, Bind) and spans.recorded() else {}
        message = {**asked(question), **recording, "nonce": nonce}
        held: list[tuple[int, set[int]]] = []
        before = processes.usage(self.pid) if sampled else None
        try:
            if sampled and before is not None:
                # it finds the question when it goes on, and this process sleeps by then
                held = processes.spread(before, self.used)
                send(self.sock, message, fds)
            started = time.perf_counter()
            self._go()
            processes.freed(held)
            if not sampled:
                send(self.sock, message, fds)
            received, unasked = self._awaited(nonce, limit_s)
            took = time.perf_counter() - started
            self._stop()
            self.prints.gather()
            close_all(unasked)
            answer = decoded(question, received, nonce if self.guards.nonce else None)
            left = self._left_behind() if self.guards.children else None
        except Late as error:
            slow, stopped = self.watchdog.slow(), processes.stopped(self.pid)
            self.close()
            if stopped:
                raise WorkerDied(
                    -signal.SIGSTOP, "somebody stopped it, and it was not continued", struck=True
                ) from error
            raise WorkerLate(
                round(error.limit_s, 1) or limit_s, compiling=self.watchdog.compiling, slow=slow
            ) from error
        except (Outsized, Malformed) as error:
            self.close()
            raise WorkerDied(-signal.SIGKILL, str(error)) from error
        except Closed as error:
            # the process may still be running with its socket closed: its exit code is waited for, briefly
            status = self.server.status(self.inner, END_LIMIT_S)
            written = self._said()
            gone = self.server.gone()
            self.close()
            if gone:
                raise ServerDied(-signal.SIGKILL, SERVER_GONE, struck=True) from error
            if status is None or not senders.sent(status):
                raise WorkerDied(-signal.SIGKILL if status is None else status, written) from error
            sender = senders.who(self.born_kills, senders.ended_for_memory())
            said = f"{written.rstrip()}\n{sender}" if written.strip() else sender
            raise WorkerDied(status, said, struck=True) from error
        if left is not None and self.server.gone():
            # what it had is adopted by others, and seems to have been left by the kernel
            self.close()
            raise ServerDied(-signal.SIGKILL, SERVER_GONE, struck=True)
        if left is not None:
            self.close()
            raise WorkerDied(-signal.SIGKILL, left)
        if recording:
            spans.adopt(received.get("spans"), f"worker {self.pid}")
        if before is not None:
            seen = self._seen(before, took)
            if isinstance(answer, Samples):
                return replace(answer, seen=seen)
        if isinstance(answer, LaunchBound):
            self.server.level = replace(
                self.server.level,
                landlock=min(answer.confined, landlock_version()),
                own_processes=bool(self.first),
                **processes.confinement_of(self.pid),
            )
        return answer

    def _awaited(self, nonce: int, limit_s: float) -> tuple[dict[str, Any], list[int]]:
        """The answer and its descriptors, behind whatever the worker says of its compilers meanwhile. Raises what
        `receive` and `_watch` raise, and Malformed."""
        deadline = time.monotonic() + limit_s
        with spans.awaited(self.watchdog.words):
            for _ in range(MOST_PHASES):
                received, unasked = receive(self.sock, max(0.0, deadline - time.monotonic()), self._watch)
                phase = phase_of(received, nonce if self.guards.nonce else None)
                if phase is None:
                    return received, unasked
                close_all(unasked)
                self.watchdog.told(phase.compiling)
                # who talks without a pause is looked at all the same
                self._watch()
        raise Malformed("it said that it compiles, over and over")

    def _as_it_was(self) -> None:
        """Before it is timed: has it the processors, the priority and the limits that it was born with? Raises
        WorkerDied where it took more than
        it was given, NotNow where another one may have taken some from it."""
        if self.process_limits is None:
            return
        now = limits_of(self.pid)
        gained, different = privileged(self.process_limits, now), changed(self.process_limits, now)
        if gained or (different and not self.first):
            self.close()
        if gained:
            raise WorkerDied(-signal.SIGKILL, f"it gained {gained}; a kernel runs with what it is given")
        if different and not self.first:
            raise NotNow(
                f"A worker is not what it was when it started ({different}): something changed it from outside. Run "
                "the command again."
            )

    def _seen(self, before: processes.Usage, took: float) -> Seen:
        """What this process saw of a request: its own clock, and what the worker's threads had of the processors
        meanwhile.
        """
        after = self.used = processes.usage(self.pid)
        return Seen(
            wall_s=took,
            own_s=after.own_s - before.own_s,
            waited_s=after.waited_s - before.waited_s,
            voluntary=after.voluntary - before.voluntary,
            involuntary=after.involuntary - before.involuntary,
        )

    def processor_s(self) -> float:
        """Seconds that the worker and everything it started have spent on processors."""
        return sum(map(processes.processor_s, processes.tree([self.pid])))

    def threads(self) -> int:
        """How many threads the worker has now."""
        return processes.threads(self.pid)

    def _go(self) -> None:
        if self.guards.freeze:
            processes.kill_group(self.pid, signal.SIGCONT)

    def _stop(self) -> None:
        if self.guards.freeze:
            processes.stop(self.pid)

    def _watch(self) -> None:
        """While an answer is awaited: is the worker alive, and within its limits? Raises Outsized, Late, or Closed when
        it has ended while something that it
        started keeps its socket open."""
        family = processes.tree([self.pid, *([self.first] if self.first else []), *self.server.adopted()])
        started = len(family) - (2 if self.first else 1)
        if started > self.limits.processes:
            raise Outsized(f"it started {started} processes; {self.limits.processes} are allowed")
        now = time.monotonic()
        if processes.alive(self.pid):
            self.died = None
        elif self.died is None:
            # what it said last may still be on its way
            self.died = now
        elif now - self.died > LAST_WORDS_S:
            raise Closed("the worker has ended")
        hang_s = self.watchdog.late() if self.guards.watchdog else None
        if hang_s is not None:
            raise Late(hang_s)
        # each process was born with the server's memory, and may map every arena
        taken = sum(map(processes.memory_bytes, family)) - (self.born_bytes + self.arena_bytes) * len(family)
        if taken > self.limits.memory_bytes:
            raise Outsized(f"it took {taken >> 20} MiB of memory; {self.limits.memory_bytes >> 20} MiB are allowed")
        if os.fstat(self.output).st_size > self.limits.flood_bytes:
            with contextlib.suppress(OSError):
                os.ftruncate(self.output, 0)
        if os.fstat(self.prints.output).st_size > self.limits.flood_bytes:
            self.prints.gather()

    def _left_behind(self) -> str | None:
        orphans = processes.tree(processes.children(self.first)) if self.first else ()
        others = [
            pid
            for pid in (*processes.tree(processes.children(self.pid)), *orphans, *self.server.adopted())
            if processes.alive(pid)
        ]
        return (
            f"{len(others)} processes were left running when it answered; a call must have finished when it returns"
            if others
            else None
        )

    def _said(self) -> str:
        size = os.fstat(self.output).st_size
        return os.pread(self.output, STDERR_KEPT, max(0, size - STDERR_KEPT)).decode(errors="replace")

    def printed(self) -> Printed | None:
        return self.prints.taken()

    def struck(self) -> WorkerDied | None:
        return self.gone if isinstance(self.gone, WorkerDied) and self.gone.struck else None

    def compiled_s(self) -> float:
        took, self.watchdog.compiled_s = self.watchdog.compiled_s, 0.0
        return took

    def close(self) -> None:
        if self.sock.fileno() < 0:
            return
        self.sock.close()
        family = processes.tree([self.pid])
        if not self.first:
            self.server.ends(family[1:])
        processes.kill_group(self.pid)
        # what it left to the first process of its namespace ends with that
        processes.kill(family[1:])
        processes.kill([self.first] if self.first else ())
        self.server.forget(self.pid, ended=self.server.status(self.inner, END_LIMIT_S) is not None)
        self.server.end_adopted()
        os.close(self.output)
        self.prints.close()
        shutil.rmtree(self.scratch, ignore_errors=True)
