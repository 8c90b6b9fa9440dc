"""Backends on request: which writer makes the CUDA or the TileLang file of a program, by its family."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from opforge.core.language.errors import UsageError
from opforge.forge import (
    write_cuda,
    write_cuda_product,
    write_cuda_scans,
    write_tilelang,
    write_tilelang_product,
    write_tilelang_scans,
)
from opforge.forge.definition import Definition
from opforge.forge.families import Layout
from opforge.forge.ir import Program

Write = Callable[[Definition, Program, Layout], tuple[str, str]]


@dataclass(frozen=True)
class Writing:
    """What writes a file's name and text, and the names that its kernels give themselves."""

    write: Write
    names: Collection[str]


CUDA: Mapping[str, Writing] = {
    "product": Writing(write_cuda_product.cuda_product, write_cuda_product.NAMES),
    "scans": Writing(write_cuda_scans.cuda_scans, write_cuda_scans.NAMES),
    "": Writing(write_cuda.cuda_file, write_cuda.NAMES),
}
TILELANG: Mapping[str, Writing] = {
    "product": Writing(write_tilelang_product.tilelang_product, write_tilelang_product.NAMES),
    "scans": Writing(write_tilelang_scans.tilelang_scans, write_tilelang_scans.NAMES),
    "": Writing(write_tilelang.tilelang_file, write_tilelang.NAMES),
}
BACKENDS = {"cuda": CUDA, "tilelang": TILELANG}


def written(backend: str, definition: Definition, program: Program, layout: Layout) -> tuple[str, str]:
    """The name and text of the file of a backend ("cuda", "tilelang").

    Raises UsageError where a name of the definition means something in its kernels.
    """
    family = "scans" if any(value.scans for value in program.values) else layout.family
    of = BACKENDS[backend]
    writing = of.get(family, of[""])
    named = [name for name, _ in (*program.reads, *program.parameters)] + [write.name for write in program.writes]
    if taken := next((name for name in named if name in writing.names), None):
        raise UsageError(
            f"{taken!r} means something in kernels of {backend}. Rename it, or leave out --backend {backend}."
        )
    return writing.write(definition, program, layout)
