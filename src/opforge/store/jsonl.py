"""Files of JSON lines, one record a line; compressed where the name ends in .gz."""

from __future__ import annotations

import contextlib
import gzip
import os
import zlib
from collections.abc import Iterable
from pathlib import Path

from opforge.core.errors import UsageError


def read_file(path: Path) -> list[str]:
    """The lines of a file. Raises UsageError where there is none, or where it is not text."""
    if not path.is_file():
        raise UsageError(f"{path} is not a file. Export one with: opforge records export FILE")
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8").splitlines()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} cannot be read as JSON lines: {error}. Export it again with: opforge records export FILE"
        ) from error


def write_file(path: Path, lines: Iterable[str]) -> None:
    """One line for each record. The same lines make the same bytes, compressed or not.

    Written beside and renamed when whole: what stood under the name stays until then. A pipe or a device is written to.
    """
    _write(path, _packed(path, lines))


def append_file(path: Path, lines: Iterable[str]) -> None:
    """Lines after those of a file that is there. Of a compressed one the bytes that are there stay as they are (a
    second member of the gzip file follows), so that a version of it in git costs what is new.
    """
    _write(path, path.read_bytes() + _packed(path, lines))


def _packed(path: Path, lines: Iterable[str]) -> bytes:
    content = "".join(f"{line}\n" for line in lines).encode()
    return gzip.compress(content, mtime=0) if path.suffix == ".gz" else content


def _write(path: Path, content: bytes) -> None:
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    place = path.resolve()
    beside = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        beside.replace(place)
    except OSError as error:
        error.filename = str(path)  # the name that was given
        raise
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
