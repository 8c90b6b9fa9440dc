"""`opforge build`: native kernels compiled ahead, found later by source, flags and architecture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from opforge.cli.shared import All, Json, Names, print_json, selected, settings
from opforge.core.definition.implementation import Implementation
from opforge.core.language import units
from opforge.core.language.errors import EnvironmentLacks, UsageError


def build(
    context: typer.Context,
    operators: Names = None,
    everything: All = False,
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="host, or a GPU target such as sm_90a; may be given several times. Default: host, and the GPU that "
            "is here."
        ),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            help="A device by name or descriptor file (my_chip.json), for its target; may be given several times."
        ),
    ] = None,
    wheel: Annotated[
        Path | None,
        typer.Option(
            help="Write a wheel into this folder: the operators of a home of your own, with what was built. Whoever "
            "installs it beside opforge has them."
        ),
    ] = None,
    version: Annotated[str, typer.Option(help="Of the wheel.")] = "0.1.0",
    json: Json = False,
) -> None:
    """Compile native kernels ahead of time into each operator's built/ folder.

    At run time they are used when source, flags and architecture match; otherwise kernels are compiled on first use.
    """
    import shutil

    from opforge.backends import native
    from opforge.backends.cpp import Cpp
    from opforge.backends.cuda import Cuda
    from opforge.backends.torch_eager import torch_runs_on
    from opforge.machine import device_named
    from opforge.workbench.kernel_wheel import home_to_pack, kernel_wheel

    for spec in map(device_named, device or ()):
        if spec.kind not in ("cpu", "cuda") or (spec.kind == "cuda" and not spec.target.startswith("sm_")):
            raise UsageError(
                f"{spec.name} is a {spec.kind} device with the target {spec.target}: C++ and CUDA kernels are not "
                f"built for it. Compile others: opforge inspect OPERATOR IMPLEMENTATION --device {spec.name}"
            )
        target = [*(target or ()), "host" if spec.kind == "cpu" else spec.target]
    registry = settings(context).registry()
    names = selected(registry, operators, everything)
    if wheel is not None:
        # before anything is compiled
        home_to_pack(registry, names, version)
    cuda = Cuda()
    targets = tuple(dict.fromkeys(target or ("host",)))
    made: list[dict[str, str]] = []
    left: dict[str, list[str]] = {}
    for name in names:
        for implementation in registry.implementations(name):
            chains = []
            if implementation.backend == "cpp" and "host" in targets:
                chains.append(Cpp().toolchain())
            if implementation.backend == "cuda":
                chains += [cuda.device_toolchain(item) for item in targets if item != "host"]
                if not target and torch_runs_on("cuda"):
                    chains.append(cuda.toolchain("cuda"))
                # a file that uses one architecture's own instructions is built for that one alone
                chains = [chain for chain in chains if implementation.arch in ("", chain.target)]
            if not chains:
                left.setdefault(_why_not(implementation, targets), []).append(f"{name}/{implementation.name}")
            for chain in chains:
                if shutil.which(chain.compiler) is None:
                    raise EnvironmentLacks(
                        f"{chain.compiler} is not on PATH; it is needed to build {implementation.source.name}. "
                        f"Install it, or leave --target {chain.target} away."
                    )
                entry = native.build_ahead(implementation, implementation.default, chain)
                made.append(
                    {
                        "operator": name,
                        "implementation": implementation.name,
                        "target": chain.target,
                        "path": str(entry.path),
                        "seconds": entry.facts["seconds"],
                    }
                )
                if not json:
                    typer.echo(
                        f"built {name}/{implementation.name} for {chain.target} in {entry.facts['seconds']} s: "
                        f"{entry.path}"
                    )
    for reason, passed_over in left.items():
        typer.echo(f"not built: {units.listed(passed_over)}: {reason}", err=True)
    if not made:
        raise UsageError(
            f"{units.listed(names)}: no C++ or CUDA kernel to build for {units.listed(targets)}. See what there is "
            f"with: opforge show {names[0]}"
        )
    if wheel is not None:
        libraries = [Path(entry["path"]) for entry in made]
        path = kernel_wheel(registry, names, libraries, wheel, version)
        made.append({"wheel": str(path)})
        if not json:
            typer.echo(f"wrote {path}: pip install it beside opforge, and `opforge list` has its operators")
    if json:
        print_json(made)


def _why_not(implementation: Implementation, targets: Sequence[str]) -> str:
    """Why nothing was built of an implementation for these targets."""
    match implementation.backend:
        case "cpp":
            return "C++ is for this machine; build it with: --target host"
        case "cuda" if all(target == "host" for target in targets):
            return "CUDA is for a GPU; name its target, as --target sm_90a"
        case "cuda":
            return f"it uses instructions of {implementation.arch} alone; build it with: --target {implementation.arch}"
        case _:
            return "only C++ and CUDA are built ahead; others are compiled at their first call"
