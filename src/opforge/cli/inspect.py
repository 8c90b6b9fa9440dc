"""`opforge inspect OP IMPLEMENTATION`: what a compiler makes of a kernel, for a target that need not be here."""

from __future__ import annotations

from typing import Annotated

import typer

from opforge.cli.shared import Json, checked, print_json, settings
from opforge.core.errors import UsageError


def inspect(
    context: typer.Context,
    operator: Annotated[str, typer.Argument(metavar="OPERATOR", help="An operator by name.")],
    implementation: Annotated[str, typer.Argument(metavar="IMPLEMENTATION", help="One of its implementations by name.")],
    target: Annotated[str, typer.Option(help="sm_80, sm_90a, sm_100, gfx942 (Triton), …. Default: sm_90a; this machine for C++.")] = "",
    dtype: Annotated[str, typer.Option(help="One of the operator's. Default: float16, or the operator's first.")] = "",
    workload: Annotated[str, typer.Option(help="Compile for this workload's shape. Default: the operator's first.")] = "",
    json: Json = False,
) -> None:
    """Compile one implementation offline for a target: registers, spills, shared memory, occupancy, and which matrix instructions are in it."""
    from opforge.inspect import inspect_implementation
    from opforge.report import inspection_lines

    registry = settings(context).registry()
    definition = registry.operator(operator)
    target = target or ("host" if registry.implementation(operator, implementation).backend == "cpp" else "sm_90a")
    shape = next((item for item in definition.workloads if workload in ("", item.name)), None)
    if shape is None:
        raise UsageError(f"{operator} has no workload{f' {workload!r}' if workload else ''}. It has: {', '.join(item.name for item in definition.workloads) or 'none'}.")
    (kind,) = checked("dtype", [dtype or ("float16" if "float16" in definition.dtypes else definition.dtypes[0])], definition.dtypes)
    found = inspect_implementation(registry, operator, implementation, target=target, dtype=kind, axes=shape.axes, scalars=shape.scalars)
    if json:
        print_json(found)
        return
    for line in inspection_lines(found):
        typer.echo(line)
