"""Files of JSON lines, one record a line; compressed where the name ends in .gz or .xz.

A record holds all cases of its verification, and so do its neighbours of the same verification: xz sees that, 4 times
smaller than gzip, whose window is shorter than a record.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from opforge.core.language.errors import UsageError


def _packed_xz(content: bytes) -> bytes:
    import lzma  # a Python may be built without it, and then lacks these files alone

    return lzma.compress(content)


def _unpacked_xz(content: bytes) -> bytes:
    import lzma

    try:
        return lzma.decompress(content)
    except lzma.LZMAError as error:
        raise OSError(str(error)) from error


PACKED: Mapping[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    ".gz": (lambda content: gzip.compress(content, mtime=0), gzip.decompress),
    ".xz": (_packed_xz, _unpacked_xz),
}
"""By the end of a name: packs, unpacks. Both kinds may have several members, one after another."""


def _bytes(content: bytes) -> bytes:
    return content


def read_file(path: Path) -> list[str]:
    """The lines of a file. Raises UsageError where there is none, or where it is not text."""
    if not path.is_file():
        raise UsageError(f"{path} is not a file. Export one with: opforge records export FILE")
    try:
        content = path.read_bytes()
        _, unpack = PACKED.get(path.suffix, (_bytes, _bytes))
        return unpack(content).decode("utf-8").splitlines()
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
    second member follows), so that a version of it in git costs what is new.
    """
    _write(path, path.read_bytes() + _packed(path, lines))


def _packed(path: Path, lines: Iterable[str]) -> bytes:
    pack, _ = PACKED.get(path.suffix, (_bytes, _bytes))
    return pack("".join(f"{line}\n" for line in lines).encode())


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
