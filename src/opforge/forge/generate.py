"""A whole operator folder from a definition: everything is computed first, then written at once, or nothing is."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from opforge.forge.analysis import analysed, described
from opforge.forge.definition import Definition
from opforge.forge.document import document
from opforge.forge.families import layout_of
from opforge.forge.ir import shown
from opforge.forge.new import checked_folder
from opforge.forge.on_request import BACKENDS, written
from opforge.forge.write_ascend import ascend_file
from opforge.forge.write_ascendc import ascendc_file
from opforge.forge.write_cpp import cpp_file
from opforge.forge.write_four_files import four_files
from opforge.forge.write_op import Case, one_line, op_text, workload_sizes
from opforge.forge.write_product import product_files
from opforge.forge.write_torch import torch_files
from opforge.forge.write_triton import triton_file
from opforge.machine import descriptors
from opforge.registry import Registry

IDEAS = {
    "triton_blocks": "a block of consecutive elements per program",
    "triton_tiles": "a tile of rows and columns per program, what is broadcast read once for a row or a column",
    "triton_onchip": "whole rows in registers, several to a program when they are narrow",
    "cpp_simd": "one parallel pass in float32 vectors",
    "cpp_rows": "rows in float32 vectors, spread over the threads",
    "triton_product": "a block of the product per program, what is done to its sums while they are in registers",
    "cpp_product": "packed panels in cache, what is done to a register tile before it is stored",
    "cuda_vectors": "16-byte vectors of elements, several in flight per thread",
    "cuda_tiles": "a vector of the last axis per thread, what is broadcast read once for it",
    "cuda_rows": "rows on chip: read once, reduced in registers or shared memory",
    "cuda_product": "a tile of the product per block, what is done to its sums before they are stored",
    "cuda_scans": "a block for each row: pieces in shared memory, their totals scanned over the block",
    "tilelang_tiles": "a tile of rows and columns per block, an element per access",
    "tilelang_rows": "rows a tile at a time, with one partial result for each column of it",
    "tilelang_product": "a tile of the product per block, its sums in registers until the formula has met them",
    "tilelang_scans": "a thread for each row, which carries every scan along",
    "torch_definition": "the formula in PyTorch, float32 in between, as the kernels have it",
    "torch_eager": "the formula as a user of PyTorch writes it: the baseline",
}
ASCEND, ASCENDC = "ascend", "ascendc"
"""On request too, and no implementations: a function that launches the Triton kernel on an NPU, and the program in
TileLang's dialect for Ascend, which prints AscendC."""
ON_REQUEST = (*BACKENDS, ASCEND, ASCENDC)
BROUGHT_IN = "a solution that came with the task, as it is"


@dataclass(frozen=True, kw_only=True)
class More:
    """What a folder gets beside what is generated: implementations as texts by file name, and cases."""

    files: Mapping[str, str] = field(default_factory=dict)
    cases: tuple[Case, ...] = ()


def files_of(
    definition: Definition, language: str = "en", more: More | None = None, backends: Sequence[str] = ()
) -> dict[str, str]:
    """The folder's files by name. Raises UsageError, with the reason, where no family generates the program.

    language   of the definition document: "en" or "zh"
    backends   what is written beside PyTorch, Triton and C++: names of ON_REQUEST
    """
    more = more or More()
    program = definition.program()
    layout = layout_of(program)
    if layout.family == "product":
        kernels = product_files(definition, program, layout)
    else:
        kernels = dict([triton_file(definition, program, layout), cpp_file(definition, program, layout)])
    kernels |= torch_files(definition, program, layout)
    for name in backends:
        if name in BACKENDS:
            file, text = written(name, definition, program, layout)
            kernels[file] = text
    generated = tuple(name.split(".")[0] for name in kernels)
    implementations = (*generated, *(name.split(".")[0] for name in more.files))
    triton = next(name for name in implementations if name.startswith("triton_"))
    return {
        "definition.md": document(definition, triton, list(descriptors().values()), language),
        **four_files(definition, program, generated),
        "op.py": op_text(definition, program, layout, implementations, more.cases),
        "README.md": _readme(definition, implementations),
        **kernels,
        **dict([ascend_file(definition, program, triton)] if ASCEND in backends else []),
        **dict([ascendc_file(definition, program, layout)] if ASCENDC in backends else []),
        **more.files,
    }


def generate(
    registry: Registry,
    definition: Definition,
    home: Path,
    language: str = "en",
    more: More | None = None,
    backends: Sequence[str] = (),
) -> tuple[Path, ...]:
    """Write `home/name/`, whole or not at all. The files written.

    language   of the definition document: "en" or "zh"
    backends   what is written beside PyTorch, Triton and C++: names of ON_REQUEST
    Raises UsageError when the name is none for an operator or taken, or no family generates the formula.
    """
    folder = checked_folder(registry, definition.name, home)
    files = files_of(definition, language, more, backends)
    home.mkdir(parents=True, exist_ok=True)
    # beside its place, so that one rename puts it there
    with tempfile.TemporaryDirectory(prefix=f".{definition.name}-", dir=home) as scratch:
        making = Path(scratch) / definition.name
        making.mkdir()
        for name, text in files.items():
            (making / name).write_text(text, encoding="utf-8")
        making.rename(folder)
    return tuple(sorted(folder / name for name in files))


def explained(definition: Definition) -> str:
    """What a definition computes, as IR, and what that costs on the devices that are known."""
    program = definition.program()
    layout = layout_of(program)
    sizes = workload_sizes(program, "gpu")
    axes = {name: math.prod(size) if isinstance(size, tuple) else size for name, size in sizes.items()}
    groups = " | ".join(", ".join(group) for group in layout.groups)
    lines = [shown(program), "", f"family     {layout.family}, walked as {groups}"]
    return "\n".join([*lines, described(analysed(program), axes, descriptors().values())])


def _readme(definition: Definition, implementations: tuple[str, ...]) -> str:
    analysis = analysed(definition.program())
    formula = "".join(f"    {line}\n" for line in definition.formula.text.splitlines())
    rows = "".join(f"| `{name}` | {IDEAS.get(name, BROUGHT_IN)} |\n" for name in implementations)
    return (
        f"# {definition.name}\n\n{definition.about or one_line(definition)}\n\n{formula}\n"
        f"Generated by `opforge new` from this formula. Growth {analysis.growth}; {analysis.flops} FLOPs, each input "
        "read and each output written once; the analysis: [definition.md](definition.md).\n\n"
        "| version | idea |\n|---|---|\n" + rows
    )
