"""`opforge inspect OP IMPLEMENTATION`: what a compiler makes of a kernel, for a target that need not be here."""

from __future__ import annotations

from typing import Annotated

import typer

from opforge.cli.shared import Json, checked, print_json, settings
from opforge.core import units
from opforge.core.errors import UsageError
from opforge.core.implementation import Implementation
from opforge.core.operator import Operator


def inspect(
    context: typer.Context,
    operator: Annotated[str, typer.Argument(metavar="OPERATOR", help="An operator by name.")],
    implementation: Annotated[str, typer.Argument(metavar="IMPLEMENTATION", help="One of its implementations by name.")],
    target: Annotated[str, typer.Option(help="sm_80, sm_90a, sm_100, gfx942 (Triton), …. Default: sm_90a; this machine for C++.")] = "",
    dtype: Annotated[str, typer.Option(help="One dtype. Default: float16, or the first that the implementation takes.")] = "",
    workload: Annotated[str, typer.Option(help="Compile for this workload's shape. Default: the operator's first.")] = "",
    json: Json = False,
) -> None:
    """Compile one implementation offline for a target: registers, spills, shared memory, occupancy, and which matrix instructions are in it."""
    from opforge.inspect import inspect_implementation
    from opforge.report import inspection_lines

    registry = settings(context).registry()
    definition = registry.operator(operator)
    chosen = registry.implementation(operator, implementation)
    target = target or ("host" if chosen.backend == "cpp" else "sm_90a")
    shape = next((item for item in definition.workloads if workload in ("", item.name)), None)
    if shape is None and workload:
        raise UsageError(f"{operator} has no workload {workload!r}. It has: {units.listed([item.name for item in definition.workloads])}.")
    axes, scalars = (shape.axes, shape.scalars) if shape is not None else (None, None)
    found = inspect_implementation(registry, operator, implementation, target=target, dtype=dtype_to_compile(definition, chosen, dtype), axes=axes, scalars=scalars)
    if json:
        print_json(found)
        return
    for line in inspection_lines(found):
        typer.echo(line)


def dtype_to_compile(operator: Operator, implementation: Implementation, given: str = "") -> str:
    """The dtype that was given; where none was, float16, or the first that operator and implementation take. Raises UsageError for one that the operator does not take."""
    if given:
        return checked("dtype", [given], operator.dtypes)[0]
    taken = [dtype for dtype in operator.dtypes if not implementation.dtypes or dtype in implementation.dtypes] or list(operator.dtypes)
    return "float16" if "float16" in taken else taken[0]
