"""`opforge show OP`: what an operator is, and what its implementations say of themselves."""

from __future__ import annotations

from typing import Annotated

import typer

from opforge.cli.shared import Json, print_json, settings
from opforge.core.operator import DOMAINS


def show(
    context: typer.Context,
    operator: Annotated[str, typer.Argument(metavar="OPERATOR", help="An operator by name.")],
    source: Annotated[bool, typer.Option("--source", help="Print op.py itself.")] = False,
    json: Json = False,
) -> None:
    """Show an operator: inputs, outputs, constraints, laws, tolerance, cases, workloads, implementations. Imports no toolchain."""
    registry = settings(context).registry()
    found = registry.operator(operator)
    implementations = registry.implementations(operator)
    assert found.folder is not None
    if source:
        typer.echo((found.folder / "op.py").read_text(encoding="utf-8"))
        return
    if json:
        words = {
            "name": found.name,
            "about": found.about,
            "source": found.source,
            "folder": str(found.folder),
            "inputs": found.inputs,
            "outputs": found.outputs,
            "scalars": found.scalars,
            "dtypes": found.dtypes,
            "constraints": found.constraints,
            "derived": found.derived,
            "laws": [{"name": law.name, "about": law.about} for law in found.laws],
            "flops": found.flops,
            "cases": found.cases,
            "workloads": found.workloads,
            "implementations": [{**vars(item), "source": str(item.source)} for item in implementations],
        }
        print_json(words)
        return
    say = typer.echo
    say(f"{found.name}: {found.about}")
    say(f"  folder     {found.folder}")
    if found.source:
        say(f"  source     {found.source}")
    for spec in found.inputs:
        kept = "".join(f", {words}" for words in (DOMAINS[spec.domain],) if words)
        say(f"  input      {spec.name}[{spec.shape}] {spec.dtype}{kept}  {spec.about}".rstrip())
    for spec in found.outputs:
        say(f"  output     {spec.name}[{spec.shape}] {spec.dtype}  {spec.about}".rstrip())
    for scalar in found.scalars:
        say(f"  parameter  {scalar.name} = {scalar.default!r}{f' of {scalar.choices}' if scalar.choices else ''}  {scalar.about}".rstrip())
    say(f"  dtypes     {', '.join(found.dtypes)}")
    for axis, expression in found.derived.items():
        say(f"  axis       {axis} = {expression}")
    for constraint in found.constraints:
        say(f"  constraint {constraint.name}: {constraint.expression}  ({constraint.about})")
    for law in found.laws:
        say(f"  law        {law.name}: {law.about}")
    tolerance = found.tolerance
    say(f"  cost       {found.flops} FLOP")
    say(f"  tolerance  {tolerance.factor:g} * eps(float32) * sqrt({tolerance.length}) * magnitude + {tolerance.roundings:g} half ulp  {tolerance.about}".rstrip())
    say("implementations, in order of preference")
    for item in implementations:
        say(f"  {item.name} ({item.backend}): {item.idea}")
        for name, expression in item.supports.items():
            say(f"      takes {name}: {expression}")
        if item.arch:
            say(f"      needs {item.arch}")
        if item.layouts != ("contiguous",):
            say(f"      layouts {', '.join(item.layouts)}")
        for name, values in item.space.items():
            say(f"      tunes {name} in {', '.join(map(str, values))}")
        if item.default.values:
            say(f"      default {item.default}")
    say("cases")
    for case in found.cases:
        say(f"  {case.name}: {_axes(case.axes)} {case.distribution} {case.layout}  ({case.why})")
    say("workloads")
    for workload in found.workloads:
        say(f"  {workload.name} [{workload.scale}]: {_axes(workload.axes)}  ({workload.source})")


def _axes(axes: object) -> str:
    return ", ".join(f"{name}={value}" for name, value in dict(axes).items())  # type: ignore[call-overload]
