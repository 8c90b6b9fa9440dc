"""`opforge inspect OP IMPLEMENTATION`: what a compiler makes of a kernel, for a target that need not be here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opforge.cli.shared import Json, OneOperator, checked, own_configs, print_json, settings
from opforge.core.definition.implementation import Implementation
from opforge.core.definition.operator import Operator, Workload
from opforge.core.language.errors import UsageError

if TYPE_CHECKING:
    from opforge.registry import Registry


def inspect(
    context: typer.Context,
    operator: OneOperator,
    implementation: Annotated[
        str,
        typer.Argument(
            metavar="[IMPLEMENTATION]",
            help="One of its implementations by name. With --targets it may be left out: then the first in Triton that "
            "is for any target.",
        ),
    ] = "",
    target: Annotated[
        str,
        typer.Option(
            help="sm_80, sm_90a, sm_100, gfx942 (Triton), …, or a device of `opforge device list`. Default: sm_90a; "
            "this machine for C++."
        ),
    ] = "",
    device: Annotated[
        str, typer.Option(help="A device by name or descriptor file (my_chip.json), instead of its target.")
    ] = "",
    targets: Annotated[
        str,
        typer.Option(
            metavar="all|DEVICE,…",
            help="Several devices side by side, by name or descriptor file: h200,mi300x,my_chip.json; all: one for "
            "each target that compilers know.",
        ),
    ] = "",
    page: Annotated[Path | None, typer.Option(help="With --targets: write the table as a page of HTML too.")] = None,
    dtype: Annotated[
        str, typer.Option(help="One dtype. Default: float16, or the first that the implementation takes.")
    ] = "",
    workload: Annotated[
        str, typer.Option(help="Compile for this workload's shape. Default: the operator's first.")
    ] = "",
    shape: Annotated[
        str, typer.Option(metavar="AXIS=SIZE,…", help="Compile for a shape of your own: lead=2x3,cols=1000.")
    ] = "",
    config: Annotated[
        str, typer.Option(metavar="NAME=VALUE,…", help="Tunables in place of their defaults: BLOCK=512,num_warps=8.")
    ] = "",
    json: Json = False,
) -> None:
    """Compile one implementation offline for a target: registers, spills, shared memory, occupancy, and which matrix
    instructions are in it. With --targets, for several devices side by side, with the roof that each sets.
    """
    from opforge.core.definition.own_shapes import ensure_taken, parse_shape
    from opforge.inspect import cannot_start, inspect_implementation, on_device
    from opforge.report import inspection_lines
    from opforge.workbench.configs import ensure_taken as ensure_config_taken, with_settings

    registry = settings(context).registry()
    definition = registry.operator(operator)
    chosen = registry.implementation(operator, implementation or _first_in_triton(registry, operator, targets))
    if targets and (target or device):
        raise UsageError("--targets names the devices; --target and --device name one. Give either.")
    if page is not None and not targets:
        raise UsageError("--page goes with --targets: opforge inspect OPERATOR --targets all --page FILE.html")
    spec = None
    if target and not device and target in names_of_devices():
        target, device = "", names_of_devices()[target]
    if device:
        from opforge.machine import device_named

        spec = device_named(device)
        target = target or spec.target
    if spec is not None and spec.kind not in ("cuda", "cpu"):
        raise UsageError(
            f"{spec.name} is a device of the kind {spec.kind}: the compilers here make code for GPUs (sm_90a, gfx942, "
            "…) and for this machine (host). For an Ascend NPU, AscendC is written from a formula: opforge new NAME "
            "--formula … --backend ascendc"
        )
    target = target or ("host" if chosen.backend == "cpp" else "sm_90a")
    if shape and workload:
        raise UsageError("--shape and --workload both say which shape. Give one of them.")
    kind = dtype_to_compile(definition, chosen, dtype)
    if shape:
        call: Workload | None = parse_shape(definition, shape)
        assert call is not None
        ensure_taken(definition, call, (kind,))
    else:
        known = checked("workload", [workload] if workload else (), (item.name for item in definition.workloads))
        call = next((item for item in definition.workloads if not known or item.name in known), None)
    axes, scalars = (call.axes, call.scalars) if call is not None else (None, None)
    settings_given = own_configs([config] if config else ())
    ensure_config_taken([chosen], settings_given)
    own_config = with_settings(chosen, settings_given[0]) if settings_given else None
    if targets:
        from opforge.inspect import ALL, inspect_for_devices
        from opforge.machine import device_named
        from opforge.report import device_lines, device_page

        if axes is None:
            raise UsageError(f"{operator} has no workload to take a shape from. Give one: --shape AXIS=SIZE,…")
        named = ALL if targets == "all" else [name for name in targets.split(",") if name]
        side_by_side = inspect_for_devices(
            registry,
            operator,
            chosen.name,
            [device_named(name) for name in named],
            dtype=kind,
            axes=axes,
            scalars=scalars or {},
            config=own_config,
        )
        title = f"{operator}/{chosen.name}, {kind}, {', '.join(f'{name}={size}' for name, size in axes.items())}"
        if page is not None:
            page.write_text(device_page(title, side_by_side), encoding="utf-8")
        if json:
            print_json(side_by_side)
        else:
            typer.echo("\n".join([title, *device_lines(side_by_side)]))
        raise typer.Exit(int(all(item.found is None for item in side_by_side)))
    if spec is not None and axes is not None:
        from opforge.inspect import ruled_out

        values = definition.scalar_values(scalars or {})
        tried = own_config or chosen.default
        if why := ruled_out(chosen, tried, definition.completed(axes, values), kind, values, spec):
            raise UsageError(f"{chosen.name} [{tried}] is not for {spec.name}: {why}")
    inspection = inspect_implementation(
        registry,
        operator,
        chosen.name,
        target=target,
        dtype=kind,
        axes=axes,
        config=own_config,
        scalars=scalars,
    )
    if spec is not None:
        inspection = on_device(inspection, spec)
    if json:
        print_json(inspection)
        return
    for line in inspection_lines(inspection):
        typer.echo(line)
    if spec is not None and (why := cannot_start(inspection, spec)):
        typer.echo(f"  on {spec.name}: {why}")


def names_of_devices() -> dict[str, str]:
    """What `opforge device list` names beside targets of compilers: devices, and the targets of those that are no
    GPU, each with the device that is meant.
    """
    from opforge.machine.catalogue import descriptors

    known = descriptors()
    others = {spec.target: name for name, spec in known.items() if spec.kind not in ("cuda", "cpu")}
    return {**others, **{name: name for name in known}}


def _first_in_triton(registry: Registry, operator: str, targets: str) -> str:
    there = registry.implementations(operator)
    # one that is not for a single target, where there is one
    in_triton = sorted((item for item in there if item.backend == "triton"), key=lambda item: item.arch != "")
    first = in_triton[0].name if in_triton else ""
    if not targets or not first:
        raise UsageError(f"Name an implementation of {operator}: {', '.join(item.name for item in there)}.")
    return first


def dtype_to_compile(operator: Operator, implementation: Implementation, given: str = "") -> str:
    """The dtype that was given; where none was, float16, or the first that operator and implementation take. Raises
    UsageError for one that the operator does not take.
    """
    if given:
        return checked("dtype", [given], operator.dtypes)[0]
    taken = [dtype for dtype in operator.dtypes if not implementation.dtypes or dtype in implementation.dtypes] or list(
        operator.dtypes
    )
    return "float16" if "float16" in taken else taken[0]
