"""Record tables on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from opforge.core.evidence.record import Record

if TYPE_CHECKING:
    from opforge.report import Grid


def print_table(records: Sequence[Record], grid: Grid | None = None) -> None:
    """The report room's rows (or a grid of its own for these records), as a rich table; plain text where there is no
    terminal.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from opforge.report import confessions, rows

    # outside a terminal nothing may be cut: logs and pipes get the whole width they need
    console = Console(width=None if Console().is_terminal else 220)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table_rows = rows(records) if grid is None else grid
    for title in table_rows.columns:
        table.add_column(
            title, justify="right" if title in table_rows.numeric else "left", no_wrap=title in table_rows.numeric
        )
    for row in table_rows.rows:
        table.add_row(*(Text(cell, style=style) for cell, style in zip(row.cells, row.styles, strict=True)))
    console.print(table)
    for confession in confessions(records):
        console.print(Text(f"  {confession}", style="yellow"))


def print_printed(records: Sequence[Record]) -> None:
    """What implementations printed while they were verified, once for each implementation and dtype."""
    import typer

    from opforge.report.record_text import clean, printed_lines

    told = set()
    for record in records:
        lines = printed_lines(record)
        title = f"  {clean(record.operator)}/{clean(record.implementation)} {clean(record.dtype)} printed:"
        if lines and (title, *lines) not in told:
            told.add((title, *lines))
            typer.echo("\n".join([title, *(f"    {line}" for line in lines)]))
