"""`opforge show OP`: what an operator is, and what its implementations say of themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from opforge.cli.shared import Json, OneOperator, print_json, settings
from opforge.core.definition.implementation import Implementation
from opforge.core.definition.operator import DOMAINS, TensorSpec

A_COST = 300
"""Characters of an expression for a cost that are shown; that of attention has 2000, and --json all of them."""


def show(
    context: typer.Context,
    operator: OneOperator,
    source: Annotated[bool, typer.Option("--source", help="Print op.py itself.")] = False,
    json: Json = False,
) -> None:
    """Show an operator: inputs, outputs, constraints, laws, tolerance, cases, workloads, implementations. Imports no
    toolchain.
    """
    registry = settings(context).registry()
    definition = registry.operator(operator)
    implementations = registry.implementations(operator)
    assert definition.folder is not None
    if source:
        typer.echo((definition.folder / "op.py").read_text(encoding="utf-8"))
        return
    if json:
        as_json = {
            "name": definition.name,
            "about": definition.about,
            "source": definition.source,
            "folder": str(definition.folder),
            "inputs": definition.inputs,
            "outputs": definition.outputs,
            "scalars": definition.scalars,
            "dtypes": definition.dtypes,
            "constraints": definition.constraints,
            "derived": definition.derived,
            "laws": [{"name": law.name, "about": law.about} for law in definition.laws],
            "flops": definition.flops,
            "cases": definition.cases,
            "workloads": definition.workloads,
            "implementations": [{**vars(item), "source": str(item.source)} for item in implementations],
        }
        print_json(as_json)
        return
    say = typer.echo
    say(f"{definition.name}: {definition.about}")
    say(f"  folder     {definition.folder}")
    if definition.source:
        say(f"  source     {definition.source}")
    for spec in definition.inputs:
        say(f"  input      {spec.name}[{spec.shape}] {spec.dtype}{_kept(spec)}  {spec.about}".rstrip())
    for spec in definition.outputs:
        say(f"  output     {spec.name}[{spec.shape}] {spec.dtype}{_kept(spec)}  {spec.about}".rstrip())
    for scalar in definition.scalars:
        say(
            f"  parameter  {scalar.name} = {scalar.default!r}{f' of {scalar.choices}' if scalar.choices else ''}  "
            f"{scalar.about}".rstrip()
        )
    say(f"  dtypes     {', '.join(definition.dtypes)}")
    for axis, expression in definition.derived.items():
        say(f"  axis       {axis} = {expression}")
    for constraint in definition.constraints:
        say(f"  constraint {constraint.name}: {constraint.expression}  ({constraint.about})")
    for law in definition.laws:
        say(f"  law        {law.name}: {law.about}")
    tolerance = definition.tolerance
    from opforge.report.record_text import short

    say(f"  cost       {short(definition.flops, A_COST)} FLOP on {definition.unit} units")
    for kind in ("bytes_read", "bytes_written", "bytes_saved"):
        if expression := getattr(definition, kind):
            say(f"  cost       {kind} {short(expression, A_COST)}")
    if definition.compute_dtype:
        say(f"  computes   in {definition.compute_dtype}")
    if definition.gradient:
        say(f"  gradient   by {', '.join((definition.gradient, *definition.further_gradients))}")
    elif definition.differentiable is not None:
        say(f"  gradient   of {', '.join(definition.differentiable) or 'nothing'}")
    arithmetic = (
        "errors(inputs, outputs, …) of op.py"
        if tolerance.errors is not None
        else f"{tolerance.factor:g} * eps(float32) * sqrt({tolerance.length}) * magnitude"
    )
    say(f"  tolerance  {arithmetic} + {tolerance.roundings:g} half ulp  {tolerance.about}".rstrip())
    say("implementations, in order of preference")
    for item in implementations:
        say(f"  {item.name} ({item.backend}): {item.idea}")
        for line in declared(item):
            say(f"      {line}")
    say("cases")
    for case in definition.cases:
        with_what = "".join(f" {as_json}" for as_json in (_axes(case.scalars), case.dtype) if as_json)
        say(f"  {case.name}: {_axes(case.axes)} {case.distribution} {case.layout}{with_what}  ({case.why})")
    say("workloads")
    for workload in definition.workloads:
        layout = workload.layout if workload.layout != "contiguous" else ""
        with_what = "".join(f" {as_json}" for as_json in (layout, _axes(workload.scalars)) if as_json)
        say(f"  {workload.name} [{workload.scale}]: {_axes(workload.axes)}{with_what}  ({workload.source})")


DECLARED: Mapping[str, Callable[[Implementation], list[str]]] = {
    "dtypes": lambda item: [f"dtypes {', '.join(item.dtypes)}"] if item.dtypes is not None else [],
    "supports": lambda item: [f"takes {name}: {expression}" for name, expression in item.supports.items()],
    "arch": lambda item: [f"target {item.arch} alone"] if item.arch else [],
    "needs": lambda item: [f"needs {item.needs}"] if item.needs else [],
    "layouts": lambda item: [f"layouts {', '.join(item.layouts)}"] if item.layouts != ("contiguous",) else [],
    "any_rank": lambda item: ["takes any rank, not collapsed"] if item.any_rank else [],
    "deterministic": lambda item: [] if item.deterministic else ["not deterministic: repeats may differ"],
    "inaccurate": lambda item: [f"inaccurate: {item.inaccurate}"] if item.inaccurate else [],
    "inaccurate_compiled": lambda item: (
        [f"inaccurate through torch.compile: {item.inaccurate_compiled}"] if item.inaccurate_compiled else []
    ),
    "not_called": lambda item: [f"not called: {item.not_called}"] if item.not_called else [],
    "best": lambda item: [f"best where {name}: {expression}" for name, expression in item.best.items()],
    "flags": lambda item: [f"flags {' '.join(item.flags)}"] if item.flags else [],
    "space": lambda item: (
        [f"tunes {name} in {', '.join(map(str, values))}" for name, values in item.space.items()]
        + ([f"default {item.default}"] if item.default.values else [])
    ),
    "limits": lambda item: [f"config {name}: {expression}" for name, expression in item.limits.items()],
}
"""What is printed of each field that a file declares, by the field's name."""


def declared(item: Implementation) -> list[str]:
    """Everything that an implementation's file declares, a line each."""
    return [line for lines_of in DECLARED.values() for line in lines_of(item)]


def _kept(spec: TensorSpec) -> str:
    """What the values of a tensor keep to, as it is declared."""
    rules = [DOMAINS[spec.domain]] if spec.domain != "any" else []
    rules += [f"below {spec.below}"] if spec.below else []
    rules += [f"from {spec.least}"] if spec.least else []
    rules += ["distinct"] if spec.distinct else []
    rules += [f"sometimes {', '.join(spec.sometimes)}"] if spec.sometimes else []
    rules += [f"of equal scores {spec.ties.rule}"] if spec.ties is not None else []
    rules += [f"offsets along {spec.offsets}"] if spec.offsets else []
    rules += [f"a list along {spec.many}"] if spec.many else []
    rules += ["optional"] if spec.optional else []
    rules += [f"overwrites {spec.overwrites}"] if spec.overwrites else []
    return "".join(f", {each}" for each in rules)


def _axes(axes: object) -> str:
    return ", ".join(f"{name}={value}" for name, value in dict(axes).items())  # type: ignore[call-overload]
