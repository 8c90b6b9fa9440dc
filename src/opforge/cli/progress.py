"""Shows what a long job is doing: a rich progress line on a terminal; elsewhere a line when something has happened, and
one at least every ten seconds.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from opforge.core.language import spans, units

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from opforge.workbench import Event

SILENT_S = 8.0
"""After this long without a line, one says what is under way: ten seconds are promised, and a busy machine may wake a
thread late.
"""
BRIEFLY_S = 1.0
"""Lines about steps come no faster than this: a log of a run with thousands of steps stays readable."""
SHOWN = 4
_OPEN: list[Lines] = []
"""What shows lines now, outermost first: every verb has one, and only the innermost breaks a silence."""


def under_way() -> str:
    """What is being done now, in a line: the newest piece of work of each kind, and how long it has taken; and what
    is waited for, with when it is ended.
    """
    newest = {name: (what, seconds) for name, what, seconds in spans.under_way() if what}
    told = [f"{name} {what} ({seconds:.0f} s)" for name, (what, seconds) in newest.items()]
    return "; ".join([*told[-SHOWN:], *spans.waits()[-SHOWN:]]) or "working"


class Lines:
    """Progress where no terminal is: `say` prints a line now and then, and a thread prints one whenever SILENT_S have
    passed without.
    """

    def __init__(
        self, write: Callable[[str], None], clock: Callable[[], float] = time.perf_counter, silent_s: float = SILENT_S
    ) -> None:
        self.write = write
        self.clock = clock
        self.silent_s = silent_s
        self.begun = self.last = clock()
        self.ended = threading.Event()
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def say(self, words: str, *, briefly_s: float = BRIEFLY_S) -> None:
        """Print the words, unless a line was printed less than `briefly_s` ago: then they are left out."""
        with self.lock:
            now = self.clock()
            if now - self.last < briefly_s:
                return
            self.last = now
            self.write(f"{now - self.begun:5.0f} s  {words}")

    def _watch(self) -> None:
        while not self.ended.wait(max(0.05, self.silent_s - (self.clock() - self.last))):
            if _OPEN[-1:] == [self]:
                self.say(under_way(), briefly_s=self.silent_s)
            else:
                self.last = self.clock()

    def __enter__(self) -> Lines:
        _OPEN.append(self)
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()
        self.thread.join()
        _OPEN.remove(self)


def _to_stderr(words: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # whoever read it has gone: that ends no measurement
        print(words, file=sys.stderr, flush=True)


@contextlib.contextmanager
def unbroken(quiet: bool = False) -> Iterator[None]:
    """What every verb runs in: no silence of ten seconds, on a terminal or not. Nothing is printed of a quick one."""
    if quiet:
        yield
    else:
        with Lines(_to_stderr):
            yield


@contextlib.contextmanager
def telling(quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """For verbs without steps to count: a function that says a line, and a line at least every ten seconds where no
    terminal is.

    On a terminal nothing is printed unless it is said.
    """
    if quiet:
        yield lambda words: None
    elif sys.stderr.isatty():
        yield _to_stderr
    else:
        with Lines(_to_stderr) as lines:
            yield lambda words: lines.say(words, briefly_s=0.0)


@contextlib.contextmanager
def tracing(path: Path | None) -> Iterator[None]:
    """Record what is done meanwhile into a file that ui.perfetto.dev opens, with a summary on stderr; nothing where
    `path` is None.
    """
    if path is None:
        yield
        return
    spans.record()
    try:
        yield
    finally:
        ended_spans = spans.stop()
        spans.write(ended_spans, path)
        for name, (count, seconds) in list(spans.by_name(ended_spans).items())[:16]:
            _to_stderr(f"{units.seconds(seconds):>9} in {count:>6} x {name}")
        _to_stderr(f"wrote {path}: open it at https://ui.perfetto.dev")


class Watcher:
    """A listener for workbench events: on a terminal one bar per operator, elsewhere lines."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description:<14}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[what]}"),
        )
        self.progress: Progress = Progress(
            *columns, console=console, disable=quiet or not console.is_terminal, transient=True
        )
        self.tasks: dict[str, TaskID] = {}
        self.lines = None if quiet or console.is_terminal else Lines(_to_stderr)

    def __call__(self, event: Event) -> None:
        if self.lines is not None:
            verdict = f": {type(event.record.verdict).__name__}" if event.record is not None else ""
            self.lines.say(f"{event.operator} {event.done}/{event.total} {event.stage} {event.what}{verdict}")
            return
        if event.operator not in self.tasks:
            self.tasks[event.operator] = self.progress.add_task(event.operator, total=event.total, what="")
        self.progress.update(
            self.tasks[event.operator], completed=event.done, total=event.total, what=f"{event.stage} {event.what}"
        )

    def __enter__(self) -> Watcher:
        self.progress.start()
        if self.lines is not None:
            self.lines.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()
        if self.lines is not None:
            self.lines.__exit__(kind, error, trace)
