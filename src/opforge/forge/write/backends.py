"""The backends that a program is written for: what writes their files, each file's idea, which are always there.

A new backend is one entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from opforge.core.language.errors import UsageError
from opforge.forge.program.definition import Definition
from opforge.forge.program.families import Layout
from opforge.forge.program.ir import Program
from opforge.forge.write import (
    cuda_file,
    cuda_product,
    cuda_scans,
    product_files,
    tilelang_file,
    tilelang_product,
    tilelang_scans,
)
from opforge.forge.write.ascend_file import ascend_file
from opforge.forge.write.ascendc_file import ascendc_file
from opforge.forge.write.cpp_file import cpp_file
from opforge.forge.write.torch_files import torch_files
from opforge.forge.write.triton_file import triton_file

Write = Callable[[Definition, Program, Layout], Mapping[str, str]]
"""The backend's files by name. Raises UsageError where it has no form for a program."""


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A backend that files are written for.

    ideas    the idea of each implementation that it may write, by the file's stem
    write    one entry for each family that has a writer of its own, and "" for the others
    names    names that mean something in its kernels, by the same families
    always   whether a folder has its files without being asked
    """

    name: str
    write: Mapping[str, Write]
    ideas: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, Collection[str]] = field(default_factory=dict)
    always: bool = False

    def files(self, definition: Definition, program: Program, layout: Layout) -> Mapping[str, str]:
        """Names and texts of the files. Raises UsageError where a name of the definition means something in them."""
        family = "scans" if any(value.scans for value in program.values) else layout.family
        taken = self.names.get(family, self.names.get("", ()))
        named = [name for name, _ in (*program.reads, *program.parameters)] + [write.name for write in program.writes]
        if clash := next((name for name in named if name in taken), None):
            raise UsageError(
                f"{clash!r} means something in kernels of {self.name}. Rename it, or leave out --backend {self.name}."
            )
        return self.write.get(family, self.write[""])(definition, program, layout)


def _one(write: Callable[[Definition, Program, Layout], tuple[str, str]]) -> Write:
    return lambda definition, program, layout: dict([write(definition, program, layout)])


def _ascend(definition: Definition, program: Program, layout: Layout) -> Mapping[str, str]:
    triton = next(iter(TRITON.files(definition, program, layout)))
    return dict([ascend_file(definition, program, triton.split(".")[0])])


TRITON = Backend(
    name="triton",
    always=True,
    write={"product": product_files.triton_product, "": _one(triton_file)},
    ideas={
        "triton_blocks": "a block of consecutive elements per program",
        "triton_tiles": "a tile of rows and columns per program, what is broadcast read once for a row or a column",
        "triton_onchip": "whole rows in registers, several to a program when they are narrow",
        "triton_product": "a block of the product per program, what is done to its sums while they are in registers",
    },
)
CPP = Backend(
    name="cpp",
    always=True,
    write={"product": product_files.cpp_product, "": _one(cpp_file)},
    ideas={
        "cpp_simd": "one parallel pass in float32 vectors",
        "cpp_rows": "rows in float32 vectors, spread over the threads",
        "cpp_product": "packed panels in cache, what is done to a register tile before it is stored",
    },
)
TORCH = Backend(
    name="torch",
    always=True,
    write={"": torch_files},
    ideas={
        "torch_definition": "the formula in PyTorch, float32 in between, as the kernels have it",
        "torch_eager": "the formula as a user of PyTorch writes it: the baseline",
    },
)
CUDA = Backend(
    name="cuda",
    write={
        "product": _one(cuda_product.cuda_product),
        "scans": _one(cuda_scans.cuda_scans),
        "": _one(cuda_file.cuda_file),
    },
    names={"product": cuda_product.NAMES, "scans": cuda_scans.NAMES, "": cuda_file.NAMES},
    ideas={
        "cuda_vectors": "16-byte vectors of elements, several in flight per thread",
        "cuda_tiles": "a vector of the last axis per thread, what is broadcast read once for it",
        "cuda_rows": "rows on chip: read once, reduced in registers or shared memory",
        "cuda_product": "a tile of the product per block, what is done to its sums before they are stored",
        "cuda_scans": "a block for each row: pieces in shared memory, their totals scanned over the block",
    },
)
TILELANG = Backend(
    name="tilelang",
    write={
        "product": _one(tilelang_product.tilelang_product),
        "scans": _one(tilelang_scans.tilelang_scans),
        "": _one(tilelang_file.tilelang_file),
    },
    names={"product": tilelang_product.NAMES, "scans": tilelang_scans.NAMES, "": tilelang_file.NAMES},
    ideas={
        "tilelang_tiles": "a tile of rows and columns per block, an element per access",
        "tilelang_rows": "rows a tile at a time, with one partial result for each column of it",
        "tilelang_product": "a tile of the product per block, its sums in registers until the formula has met them",
        "tilelang_scans": "a thread for each row, which carries every scan along",
    },
)
ASCEND = Backend(name="ascend", write={"": _ascend})
"""A function that launches the Triton kernel on an NPU. It is no implementation: it has no ideas."""
ASCENDC = Backend(name="ascendc", write={"": _one(ascendc_file)})
"""The program in TileLang's dialect for Ascend, which prints AscendC. No implementation either."""

BACKENDS: Mapping[str, Backend] = {
    backend.name: backend for backend in (TRITON, CPP, TORCH, CUDA, TILELANG, ASCEND, ASCENDC)
}
ON_REQUEST = tuple(name for name, backend in BACKENDS.items() if not backend.always)
IDEAS: Mapping[str, str] = {stem: idea for backend in BACKENDS.values() for stem, idea in backend.ideas.items()}
"""The idea of every implementation that may be generated, by its name."""
