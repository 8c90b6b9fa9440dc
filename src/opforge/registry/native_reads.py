"""Which type a C++ or CUDA file reads a tensor as, held against the dtype that the operator gives it.

`opforge::data<const int32_t>` of an int64 tensor compiles, and reads halves of numbers. Of tensors whose dtype depends
on the call (T, a parameter's) nothing is asked: the file has dispatched on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.implementation import Implementation
from opforge.core.definition.operator import Operator
from opforge.core.language.errors import UsageError

_EXPORT = re.compile(r"OPFORGE_EXPORT\(\s*run\s*,\s*(\w+)\s*\)")
_READ = re.compile(r"\bopforge::data<\s*(?:const\s+)?([\w:]+)\s*>\s*\(\s*(\w+)\s*\)")

READ_AS = {
    "float64": ("double",),
    "float32": ("float",),
    "int64": ("int64_t", "long"),
    "int32": ("int32_t", "int"),
    "int16": ("int16_t", "short"),
    "int8": ("int8_t", "char"),
    "uint8": ("uint8_t",),
    "bool": ("bool", "uint8_t"),
}
"""Types of C++ that hold a format. Unsigned types of its width read its bits; others of the table another format."""
_UNSIGNED = {1: ("uint8_t", "char"), 2: ("uint16_t",), 4: ("uint32_t", "unsigned"), 8: ("uint64_t",)}
_KNOWN = {name for names in READ_AS.values() for name in names} | {n for names in _UNSIGNED.values() for n in names}


def check_reads(operator: Operator, implementation: Implementation) -> None:
    """Raises UsageError, with the line, where a tensor of a fixed dtype is read as another."""
    if implementation.source.suffix not in (".cpp", ".cu"):
        return
    text = implementation.source.read_text(encoding="utf-8")
    dtypes = dict(_parameters(text, [spec.dtype for spec in (*operator.inputs, *operator.fresh)]))
    for read in _READ.finditer(text):
        kind, dtype = read[1].removeprefix("std::"), dtypes.get(read[2], "")
        if dtype not in DTYPES or kind not in _KNOWN:
            continue
        fits = (*READ_AS.get(dtype, ()), *_UNSIGNED[DTYPES[dtype].itemsize])
        if kind not in fits:
            line = text[: read.start()].count("\n") + 1
            raise UsageError(
                f"{implementation.source}:{line}: {read[2]} is {dtype} in op.py, and is read as {read[1]}. Read it as "
                f"opforge::data<const {fits[0]}>({read[2]})."
            )


def _parameters(text: str, dtypes: list[str]) -> Iterator[tuple[str, str]]:
    """The tensors that the exported function takes, by its own names for them, with their dtypes in op.py."""
    exported = _EXPORT.search(text)
    found = exported and re.search(rf"\bvoid\s+{exported[1]}\s*\(([^)]*)\)", text)
    if not found:
        return
    for one, dtype in zip(found[1].split(","), dtypes, strict=False):
        words = one.split()
        if len(words) > 1 and "TensorView" in one:
            yield words[-1].lstrip("&*"), dtype
