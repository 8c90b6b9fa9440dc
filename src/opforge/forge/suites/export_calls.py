"""Operators as a suite of BackendBench: calls at a definition's sizes, and the folder's PyTorch as its kernel."""

from __future__ import annotations

import math
import re
from pathlib import Path

from opforge.core.language.errors import UsageError
from opforge.forge.program.definition import Definition
from opforge.forge.suites.formats.call_lines import (
    Call,
    CallFile,
    OperatorCalls,
    TensorArgument,
    folder_of,
    kernel_function,
)
from opforge.forge.suites.formats.documents import text_of
from opforge.forge.suites.tasks import KERNELS
from opforge.forge.write.document import default_workloads


def suite_files(definition: Definition, operator: str, dtype: str, folder: Path | None) -> dict[str, str]:
    """The texts of a suite by path: suite.txt, and kernels of an operator's folder under the name that ATen has.

    operator   the operator of ATen that the definition computes: aten.relu.default
    dtype      of all tensors; "": the definition's first one
    folder     the operator's folder; None: no kernels
    Raises UsageError for a definition with parameters (calls would need them as ATen orders them) or no such dtype.
    """
    if not re.fullmatch(r"aten\.\w+(\.\w+)?", operator):
        raise UsageError(f"{operator!r:.60} is no operator of ATen. Write for example: --aten aten.relu.default")
    kind = dtype or definition.dtypes[0]
    if kind not in definition.dtypes:
        raise UsageError(f"{definition.name} has no {kind}. It has: {', '.join(definition.dtypes)}.")
    if definition.parameters:
        raise UsageError(
            f"{definition.name} has the parameter {next(iter(definition.parameters))}, and calls give tensors alone "
            "here. Write the number into the formula."
        )
    program = definition.program()
    calls = []
    for one in definition.workloads or default_workloads(definition, program):
        sizes = {axis: math.prod(size) if isinstance(size, tuple) else size for axis, size in one.axes.items()}
        shapes = [tuple(sizes[axis.lstrip("*")] for axis in axes) for _, axes in program.reads]
        # 0: of no model that was counted
        calls.append(Call(count=0, args=tuple(TensorArgument(shape=of, dtype=kind) for of in shapes), kwargs={}))
    suite = CallFile(operators=(OperatorCalls(name=operator, entries=tuple(calls)),))
    files = {"suite.txt": suite.written()}
    path = folder / "torch_eager.py" if folder is not None else None
    if path is not None and path.is_file():
        called, place = kernel_function(operator), folder_of(operator)
        # the function itself under the name that is looked for: the file is one function
        text, found = re.subn(r"^def run\(", f"def {called}(", text_of(path), flags=re.MULTILINE)
        if found == 1:
            files[f"{KERNELS}/{place}/{place}_implementation_v1.py"] = text
    return files
