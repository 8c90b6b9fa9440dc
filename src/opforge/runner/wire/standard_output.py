"""What a worker prints, from its own buffers to the parent, which keeps the beginning of it.

It goes to a file in memory: whatever is in there, the messages between parent and worker are none of it. In calls that
are judged each line is written at once, so that what a kernel printed before it crashed or hung is there. While samples
are taken nothing is written until a buffer is full.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import io
import os
import sys
import tempfile

from opforge.core.language.printed import MOST_BYTES, Printed, printed

MOST_READ = 4 << 20
"""Bytes that are read of what came since the last look; lines beyond are not counted."""
PIECE = 1 << 16
FULLY, BY_LINE = 0, 1
"""_IOFBF and _IOLBF of <stdio.h> on Linux."""


def nameless_file() -> int:
    """A file in memory without a name: nothing is left behind, and its size is watched."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("opforge-output", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    # appended to, so that cutting it to nothing really throws a flood away
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    return fd


class Prints:
    """The parent's end: the file that a worker's standard output is, and the beginning of what it wrote."""

    def __init__(self) -> None:
        self.output = nameless_file()
        self.written, self.lines, self.open_line = b"", 0, False

    def gather(self) -> None:
        """Take what there is out of the file."""
        with contextlib.suppress(OSError):
            size = os.fstat(self.output).st_size
            if not size:
                return
            for place in range(0, min(size, MOST_READ), PIECE):
                piece = os.pread(self.output, min(PIECE, size - place), place)
                self.written += piece[: max(0, MOST_BYTES - len(self.written))]
                self.lines += piece.count(b"\n")
                self.open_line = not piece.endswith(b"\n")
            os.ftruncate(self.output, 0)

    def taken(self) -> Printed | None:
        """What was gathered since this was asked last; None for nothing."""
        found = printed(self.written, self.lines + self.open_line)
        self.written, self.lines, self.open_line = b"", 0, False
        return found

    def close(self) -> None:
        """Gather the rest, and give the file back."""
        self.gather()
        with contextlib.suppress(OSError):
            os.close(self.output)


class OwnOutput:
    """The worker's end: Python's and C's buffers before its standard output, as they were before any of a kernel's own
    code ran. Made once, in the process that prints.
    """

    def __init__(self) -> None:
        self.stream = sys.stdout
        self.libc = ctypes.CDLL(None)
        self.handle: ctypes.c_void_p | None = None
        with contextlib.suppress(ValueError):
            self.handle = ctypes.c_void_p.in_dll(self.libc, "stdout")
        if isinstance(self.stream, io.TextIOWrapper):
            # whatever the locale: a character that it lacks must not end the kernel that prints it
            self.stream.reconfigure(encoding="utf-8", errors="backslashreplace", write_through=False)
        # of its own: with PYTHONUNBUFFERED the C library's has a single character
        self.buffer = ctypes.create_string_buffer(PIECE)
        if self.handle is not None:
            self.libc.setvbuf(self.handle, self.buffer, BY_LINE, ctypes.c_size_t(PIECE))
        self.by_line(True)

    def by_line(self, wanted: bool) -> None:
        """Write each line at once from now on, or only what no buffer holds."""
        if isinstance(self.stream, io.TextIOWrapper):
            with contextlib.suppress(ValueError, OSError):
                self.stream.reconfigure(line_buffering=wanted)
        if self.handle is not None:
            self.libc.setvbuf(self.handle, None, BY_LINE if wanted else FULLY, ctypes.c_size_t(0))

    def flush(self) -> None:
        """Write what the buffers hold."""
        if isinstance(self.stream, io.TextIOWrapper):
            with contextlib.suppress(ValueError, OSError):
                self.stream.flush()
        self.libc.fflush(None)
