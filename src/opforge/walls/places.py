"""Which folders belong to the system, to a toolchain and to Python: what may be read beside what is given by name."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store", "/sys/devices/system"),
    *("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/nvcc.profile"),
)
"""What every toolchain reads, and no user keeps secrets in."""
PATHS = ("PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "CPLUS_INCLUDE_PATH", "CUDA_HOME", "CUDA_PATH")
"""Variables that name more folders of toolchains."""
SYSTEM_FOLDERS = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt", "/proc", "/sys", "/dev", "/nix", "/gnu"),
    "/run/nvidia-persistenced",
)
"""What a worker reads of the system: more than a compiler, since PyTorch and drivers look at the machine."""


def of_workers() -> Iterator[Path]:
    """What a worker reads beside its own folders and its kernel."""
    yield from (Path(name) for name in SYSTEM_FOLDERS)
    yield from of_toolchain("g++")
    yield from of_python()


def of_toolchain(program: str) -> Iterator[Path]:
    """The places that a toolchain reads."""
    yield from (Path(name) for name in SYSTEM)
    found = shutil.which(program)
    if found is not None:
        for path in {Path(found).absolute(), Path(found).resolve()}:
            yield from _parts(path.parent.parent)
            yield path.parent
    for name in PATHS:
        for entry in os.environ.get(name, "").split(os.pathsep):
            if entry and (path := Path(entry)).is_absolute():
                yield from _parts(path)


def of_python() -> Iterator[Path]:
    """What this interpreter reads: its own files, installed packages, opforge."""
    for name in dict.fromkeys((sys.prefix, sys.base_prefix, *sys.path, str(Path(__file__).resolve().parents[2]))):
        if name and Path(name).exists():
            yield from _parts(Path(name))


def _parts(place: Path) -> Iterator[Path]:
    """A folder of a toolchain; where it is the user's own or one above it, only those below it that hold programs."""
    home = Path("~").expanduser().resolve()
    whole = place.resolve()
    if whole == Path("/") or home == whole or home.is_relative_to(whole):
        yield from (place / name for name in ("bin", "lib", "lib64", "libexec", "include", "share/gcc"))
    else:
        yield place
