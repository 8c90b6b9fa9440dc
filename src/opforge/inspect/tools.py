"""Where the tools that read binaries are: in Triton's wheel, or on PATH."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from opforge.core.language.errors import EnvironmentLacks
from opforge.walls.tool import run


def _in_triton(name: str) -> Path | None:
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / name
    return path if path.is_file() else None


def tool(name: str) -> Path:
    """The path of cuobjdump, nvdisasm or ptxas. Raises EnvironmentLacks when it is neither in Triton's wheel nor on
    PATH.
    """
    path = _in_triton(name) or shutil.which(name)
    if path is None:
        raise EnvironmentLacks(
            f"Reading a compiled kernel needs `{name}`. Install the CUDA toolkit, or: pip install triton==3.6.0 (its "
            "wheel holds one)."
        )
    return Path(path)


def assembler(arch: str) -> Path:
    """The ptxas that knows an architecture ("sm_90a"): Triton's wheel has one of its own for Blackwell."""
    number = int("".join(letter for letter in arch.removeprefix("sm_") if letter.isdigit()))
    return (_in_triton("ptxas-blackwell") if number >= 100 else None) or tool("ptxas")


def extract_cubins(library: Path, folder: Path) -> None:
    """Leave the cubins that a library or an object holds in `folder`; none where there are none."""
    whole = library.resolve()
    run([tool("cuobjdump"), "--extract-elf", "all", whole], writable=[folder], readable=[whole], cwd=folder)
