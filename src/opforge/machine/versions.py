"""Versions of what could change a result, found without importing any of it."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import re
import shutil
from pathlib import Path

from opforge.machine.accelerator import command_output

PACKAGES = ("torch", "triton", "tilelang", "apache-tvm-ffi", "numpy", "liger-kernel", "opforge")
COMPILERS = ("g++", "nvcc")


@functools.cache
def versions() -> dict[str, str]:
    """Versions of the packages and compilers that are here, by name."""
    by_package = {name: version for name in PACKAGES if (version := _package(name))}
    return {**by_package, **{name: version for name in COMPILERS if (version := _compiler(name))}}


def built_for_debugging() -> bool:
    """Whether the installed torch was built with assertions; torch is not imported for this."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    file = Path(spec.origin).with_name("version.py")
    return (
        file.is_file() and re.search(r"^debug\s*=\s*True", file.read_text(encoding="utf-8"), re.MULTILINE) is not None
    )


def _package(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _compiler(name: str) -> str:
    path = shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")
    if path is None:
        return ""
    output = command_output([path, "--version"])
    release = re.search(r"\bV(\d+\.\d+\.\d+)", output) or re.search(
        r"(\d+\.\d+(?:\.\d+)?)\s*$", output.partition("\n")[0]
    )
    return release.group(1) if release else ""
