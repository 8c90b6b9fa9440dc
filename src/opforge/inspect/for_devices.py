"""One implementation compiled for several described devices, side by side: what each compiler made, and which roof of
each device is the lower one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from opforge.core.definition.device import DeviceSpec
from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.implementation import Config, Implementation, Rejected
from opforge.core.definition.operator import ScalarValue
from opforge.core.definition.shapes import Axes
from opforge.core.evidence.inspection import ForDevice, Inspection
from opforge.core.language.errors import OpforgeError
from opforge.inspect.binaries import on_device
from opforge.inspect.offline import inspect_implementation
from opforge.registry import Registry
from opforge.roofline import bound

ALL = ("nvidia-a100-80g", "nvidia-rtx4090", "nvidia-h200", "nvidia-b200", "amd-mi300x")
"""A device for each target that compilers here know."""


def inspect_for_devices(
    registry: Registry,
    operator: str,
    implementation: str,
    devices: Sequence[DeviceSpec],
    *,
    dtype: str,
    axes: Axes,
    scalars: Mapping[str, ScalarValue],
    config: Config | None = None,
    jobs: int = 2,
) -> list[ForDevice]:
    """In the order of `devices`. What a compiler refuses, or a descriptor rules out, is a reason and no error.

    axes, scalars   of the call; config: default the implementation's own; jobs: compilers at once
    """
    definition, chosen = registry.operator(operator), registry.implementation(operator, implementation)
    values = definition.scalar_values(scalars)
    completed = definition.completed(axes, values)

    def one(spec: DeviceSpec) -> ForDevice:
        cost = definition.cost(completed, dtype, values)
        roof = bound(cost, spec, definition.compute_dtype_of(dtype, values), definition.unit)
        found = None
        reason = ruled_out(chosen, config or chosen.default, completed, dtype, values, spec)
        if not reason:
            try:
                compiled = inspect_implementation(
                    registry,
                    operator,
                    implementation,
                    target=spec.target,
                    dtype=dtype,
                    axes=axes,
                    config=config,
                    scalars=values,
                )
                found = on_device(compiled, spec)
                reason = cannot_start(found, spec)
            except OpforgeError as error:
                reason = str(error)
        return ForDevice(
            device=spec.name,
            target=spec.target,
            found=found,
            reason=reason,
            limiter=roof.limiter if roof else "",
            least_s=roof.time_s if roof else 0.0,
            resident_blocks=_resident(found, spec),
        )

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        return list(pool.map(one, devices))


def ruled_out(
    implementation: Implementation,
    config: Config,
    axes: Axes,
    dtype: str,
    scalars: Mapping[str, ScalarValue],
    spec: DeviceSpec,
) -> str:
    """Why a config is not for a device, with one that is where there is any; "" where its limits allow it. axes: all
    of them, the derived ones too.
    """
    call = (axes, dtype, DTYPES[dtype].itemsize, scalars, spec.bounds())
    answer = implementation.allows(config, *call)
    if not isinstance(answer, Rejected):
        return ""
    fitting = (
        other for other in implementation.configs() if not isinstance(implementation.allows(other, *call), Rejected)
    )
    other = next(fitting, None)
    instead = (
        f"One that they allow: --config {','.join(f'{name}={value}' for name, value in other.values)}"
        if other is not None
        else "They allow no other either"
    )
    return f"its limits rule the config out there: {answer.reason}. {instead}"


def cannot_start(found: Inspection, spec: DeviceSpec) -> str:
    """Why what was compiled can't be launched on a device, by its descriptor; "" where nothing speaks against it."""
    most = max((kernel.shared_bytes or 0 for kernel in found.kernels), default=0)
    if 0 < spec.shared_bytes_per_block < most:
        return (
            f"a block needs {most} bytes of shared memory, and {spec.name} has {spec.shared_bytes_per_block}: it "
            "compiles and cannot be launched"
        )
    return ""


def _resident(found: Inspection | None, spec: DeviceSpec) -> int | None:
    seats = [kernel.residency for kernel in found.kernels if kernel.residency is not None] if found else []
    return min(seat.blocks_per_unit for seat in seats) * spec.units if seats and spec.units else None
