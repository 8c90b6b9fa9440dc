"""Compiles one implementation for a target in a process of its own, behind walls, and reads what came out.

A process of its own, because Triton chooses between interpreter and compiler when it is imported, because a compiler
may abort, and because some print whole assembly listings when they fail.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from opforge.backends import Artefact, backend
from opforge.backends.shared_code import package_of
from opforge.core.definition.implementation import Config, Rejected
from opforge.core.definition.operator import Operator, ScalarValue, Workload
from opforge.core.definition.shapes import Axes
from opforge.core.evidence.inspection import Inspection, KernelUse
from opforge.core.language import spans
from opforge.core.language.errors import EnvironmentLacks, OpforgeError, UsageError
from opforge.inspect.binaries import kernels_of
from opforge.registry import Registry
from opforge.walls import places, tool

LIMIT_S = 300.0
DEVICE_TYPES = {"sm": "cuda", "gf": "cuda"}
"""torch calls AMD's GPUs "cuda" as well."""


def inspect_implementation(
    registry: Registry,
    operator_name: str,
    implementation_name: str,
    *,
    target: str,
    dtype: str,
    axes: Axes | None = None,
    config: Config | None = None,
    scalars: Mapping[str, ScalarValue] | None = None,
) -> Inspection:
    """Compile an implementation for `target` ("sm_80", "sm_90a", "gfx942", …) and report what its kernels use.

    axes     the shape to compile for; default: the operator's first workload. Derived axes may be left out
    config   a point of the implementation's tunable space; default: its own default
    scalars  parameters of the call; default: the first workload's where the shape is that too, else the operator's
             defaults

    Raises UsageError for an unknown name or a call that the implementation does not take, EnvironmentLacks when a
    compiler or cuobjdump is missing, and OpforgeError with the compiler's words when it refuses the source.
    """
    operator = registry.operator(operator_name)
    implementation = registry.implementation(operator_name, implementation_name)
    if dtype not in operator.dtypes:
        raise UsageError(f"{operator_name} is not defined for {dtype}. Choose from: {', '.join(operator.dtypes)}.")
    first = _first_workload(operator) if axes is None else None
    values = operator.scalar_values(scalars if scalars is not None else first.scalars if first else {})
    shape = operator.completed(first.axes if first else axes or {}, values)
    answer = implementation.accepts(shape, dtype, values)
    if isinstance(answer, Rejected):
        raise UsageError(
            f"{answer.reason}. Choose another dtype or shape, or another implementation: opforge show {operator_name}"
        )
    chosen = implementation.default if config is None else config
    with tempfile.TemporaryDirectory(prefix="opforge-inspect-") as folder:
        device = DEVICE_TYPES.get(target[:2], "cpu")
        request: dict[str, Any] = {
            "homes": [str(home.path) for home in registry.homes],
            "operator": operator_name,
            "implementation": implementation_name,
            "target": target,
            "dtype": dtype,
            "axes": shape,
            "scalars": values,
            "config": list(chosen.values),
            "device": device,
            "folder": folder,
        }
        told = ask_child(request, backend(implementation.backend).environment(device))
        artefacts = [Artefact(**{**item, "path": Path(item["path"])}) for item in told]
        kernels = tuple(
            _of_its_config(use, artefact)
            for artefact in artefacts
            for use in kernels_of(artefact, target, dtype, implementation.source)
        )
    return Inspection(
        operator=operator_name,
        implementation=implementation_name,
        backend=implementation.backend,
        target=target,
        dtype=dtype,
        axes=shape,
        config=chosen,
        compile_s=sum(artefact.seconds for artefact in artefacts),
        kernels=kernels,
    )


def _first_workload(operator: Operator) -> Workload:
    if not operator.workloads:
        raise UsageError(
            f"{operator.name} has no workload to take a shape from. Give axes, or add a Workload to its op.py."
        )
    return operator.workloads[0]


def _of_its_config(use: KernelUse, artefact: Artefact) -> KernelUse:
    """The same, where an autotuned kernel is compiled once for each of its configurations: with that."""
    config = (artefact.facts or {}).get("config", "")
    return replace(use, kernel=f"{use.kernel} [{config}]") if config else use


@spans.spanned(
    lambda request, variables: (
        "compile",
        f"{request['operator']} {request['implementation']} for {request['target']}",
        "",
    )
)
def ask_child(request: Mapping[str, Any], variables: Mapping[str, str]) -> list[dict[str, Any]]:
    """The artefacts that a child process made, as plain data. Raises what the child raised."""
    asked, answered = Path(request["folder"], "request.json"), Path(request["folder"], "answer.json")
    asked.write_text(json.dumps(request), encoding="utf-8")
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH", ""))))
    folder = Path(request["folder"])
    # what this process was started with says nothing of how the child must run Triton
    environment = {
        **{name: value for name, value in os.environ.items() if name.startswith("OPFORGE_")},
        "TRITON_INTERPRET": "0",
        **variables,
        "PYTHONPATH": path,
        # what a kernel's own code can write is loaded by nobody else
        **{f"{name}_CACHE_DIR": str(folder / name.lower()) for name in ("TRITON", "TILELANG", "TORCHINDUCTOR")},
    }
    command = [sys.executable, "-P", "-m", "opforge.inspect.compile_process", str(asked), str(answered)]
    homes = [Path(home) for home in request["homes"]]
    if "source" in request:
        homes += [package_of(Path(request["source"])), Path(request["source"]).parent]
    try:
        done = tool.run(
            command,
            writable=[folder],
            readable=[*places.of_python(), *homes],
            cwd=Path.cwd(),
            environment=environment,
            wall_s=LIMIT_S,
            processor_s=int(LIMIT_S),
            memory_bytes=0,
        )
    except tool.TookTooLong as error:
        raise OpforgeError(
            f"Compiling {request['implementation']} for {request['target']} took more than {LIMIT_S:.0f} s. Try a "
            "smaller shape or config."
        ) from error
    if not answered.exists():
        complaint = (done.stderr or done.stdout).strip()[-2000:]
        raise OpforgeError(
            f"The compiler ended with status {done.returncode} and no answer. Its last words:\n{complaint}"
        )
    answer = json.loads(answered.read_text(encoding="utf-8"))
    if "error" in answer:
        kind = {"UsageError": UsageError, "EnvironmentLacks": EnvironmentLacks}.get(answer["error"], OpforgeError)
        raise kind(answer["reason"])
    artefacts: list[dict[str, Any]] = answer["artefacts"]
    return artefacts
