"""Shows what a long job is doing: a rich progress line on a terminal, silence elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from opforge.workbench import Event


class Watcher:
    """A listener for workbench events. One line per operator; on anything but a terminal it stays quiet."""

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
        self.progress: Progress = Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True)
        self.tasks: dict[str, TaskID] = {}

    def __call__(self, event: Event) -> None:
        if event.operator not in self.tasks:
            self.tasks[event.operator] = self.progress.add_task(event.operator, total=event.total, what="")
        self.progress.update(self.tasks[event.operator], completed=event.done, total=event.total, what=f"{event.stage} {event.what}")

    def __enter__(self) -> Watcher:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.progress.stop()
