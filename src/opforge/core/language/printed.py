"""What a kernel printed, as a noun of records: bounded, and in characters that steer nothing."""

from __future__ import annotations

from dataclasses import dataclass

MOST_BYTES, MOST_LINES = 4096, 20
"""What is kept of it: the first bytes, and of those the first lines. Somebody who looks for a bug prints a few values;
a loop that prints is no reason for a record of megabytes."""


@dataclass(frozen=True, kw_only=True)
class Printed:
    """What an implementation's process wrote to its standard output while it was verified: its first lines.

    text        as `printable` leaves it, MOST_LINES lines at most; a line that was cut ends in "…"
    more_lines  how many lines came after them
    """

    text: str
    more_lines: int = 0


def printable(text: str) -> str:
    """`text` line by line, spaces kept, with characters that steer a terminal, reorder a line or cannot be printed
    shown as escapes.

    >>> printable("a\\tb\\x1b[2J\\nc")
    'a    b\\\\x1b[2J\\nc'
    """
    lines = text.replace("\r\n", "\n").replace("\t", "    ").split("\n")
    return "\n".join(
        "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in line)
        for line in lines
    )


def printed(written: bytes, lines: int) -> Printed | None:
    """The Printed of a process that wrote `lines` lines, of which `written` are the first MOST_BYTES bytes; None of one
    that wrote none.

    >>> printed(b"x is 3\\n", 1)
    Printed(text='x is 3', more_lines=0)
    """
    if not written:
        return None
    text = written[:MOST_BYTES].decode("utf-8", errors="replace")
    kept = printable(text.removesuffix("\n")).split("\n")[:MOST_LINES]
    if len(kept) < MOST_LINES and len(written) >= MOST_BYTES and not text.endswith("\n"):
        kept[-1] += "…"
    return Printed(text="\n".join(kept), more_lines=max(0, lines - len(kept)))
