"""Compiled Python of toolchains, where they were installed without: many containers are, and then each start compiles
thousands of files, seconds for torch and tens of seconds for Inductor.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from opforge.backends.cache import cache_root

INDUCTOR = (
    "sympy",
    "torch/_dynamo",
    "torch/_inductor",
    "torch/distributed",
    "networkx",
    "torch/fx",
    "torch/_functorch",
    "mpmath",
    "torch/_higher_order_ops",
    "torch/utils",
    "torch/nn",
    "torch/ao",
    "torch/onnx",
    "torch/export",
    "torch/_export",
)
"""What Inductor imports: 50 MB in 2,300 files, nine tenths of them here; largest first, since a server imports torch
itself meanwhile.
"""
LEAST_PROCESSORS = 4
"""With fewer the server that imports would only be slowed down."""


def bytecode_kept() -> dict[str, str]:
    """The variables that let servers keep compiled Python where torch was installed without; none elsewhere."""
    torch = _folder("torch")
    if torch is None or any((torch / "__pycache__").glob("__init__.*.pyc")):
        return {}
    return {"PYTHONPYCACHEPREFIX": str(cache_root() / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}


def keep_here() -> None:
    """Let this process keep compiled Python there too, unless it has a place: it imports torch as its servers do."""
    kept = bytecode_kept()
    if kept and sys.pycache_prefix is None:
        sys.pycache_prefix, sys.dont_write_bytecode = kept["PYTHONPYCACHEPREFIX"], False


def compile_ahead(kept: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
    """Compile what Inductor imports, by all processors, beside the server that will import it one file after another
    (29 s on an H200's host). None where `kept` is none (see `bytecode_kept`), or it has been done. What it leaves
    undone, or what fails, the server does itself.
    """
    folders = [place for name in INDUCTOR if (place := _folder(name)) is not None]
    if not kept or (os.cpu_count() or 1) < LEAST_PROCESSORS or _done(kept, folders):
        return None
    # tests are many, and nobody imports them; -P: a file in the working directory is no module of compileall's
    words = ["-P", "-m", "compileall", "-q", "-j", "0", "-x", r"/tests?/"]
    with contextlib.suppress(OSError):
        return subprocess.Popen(
            [sys.executable, *words, *map(str, folders)],
            env={**os.environ, **kept},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return None


def give_up(compilers: subprocess.Popen[bytes]) -> None:
    """End what `compile_ahead` began, its processes too; nothing where it is done."""
    if compilers.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(compilers.pid, signal.SIGKILL)
    compilers.wait()


def _done(kept: Mapping[str, str], folders: list[Path]) -> bool:
    """Whether each folder's own module is there compiled: somebody has imported or compiled them all."""
    prefix = Path(kept["PYTHONPYCACHEPREFIX"])
    return all(any((prefix / folder.relative_to(folder.anchor)).glob("__init__.*.pyc")) for folder in folders)


def _folder(name: str) -> Path | None:
    """Where a package lies, or a folder below one; None where it is not installed. Nothing is imported."""
    package, _, below = name.partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    place = Path(spec.origin).parent / below
    return place if place.is_dir() else None
