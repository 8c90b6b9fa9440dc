"""Input values: distributions chosen to show what a kernel gets wrong."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from opforge.core.dtypes import DTYPES
from opforge.core.errors import unknown
from opforge.core.expr import evaluate
from opforge.core.operator import Case, Operator, TensorSpec
from opforge.core.shapes import full_shape
from opforge.runner.arena import Arena


def fresh_seed() -> int:
    """A seed nobody can know beforehand: 63 bits from the operating system."""
    return secrets.randbits(63)


def _normal(shape: tuple[int, ...], largest: float, generator: Any) -> Any:
    import torch

    return torch.randn(shape, generator=generator, dtype=torch.float32, device=generator.device)


def _uniform(shape: tuple[int, ...], largest: float, generator: Any) -> Any:
    import torch

    return torch.rand(shape, generator=generator, dtype=torch.float32, device=generator.device) * 2 - 1


def _large(shape: tuple[int, ...], largest: float, generator: Any) -> Any:
    # exp overflows in float32 from 88.7 on; 200 is far past it and a float16 still holds it and its square root of squares
    return _normal(shape, largest, generator) * 200


def _tiny(shape: tuple[int, ...], largest: float, generator: Any) -> Any:
    return _normal(shape, largest, generator) * 1e-4


def _offset(shape: tuple[int, ...], largest: float, generator: Any) -> Any:
    # a mean of a hundred standard deviations: a variance computed as E[x^2] - E[x]^2 loses four digits
    return _normal(shape, largest, generator) + 100


def _skewed(shape: tuple[int, ...], largest: float, generator: Any) -> Any:
    return _normal(shape, largest, generator).exp()


def _sparse(shape: tuple[int, ...], largest: float, generator: Any) -> Any:
    import torch

    values = _normal(shape, largest, generator)
    return values * (torch.rand(shape, generator=generator, device=generator.device) < 0.1)


def _constant_rows(shape: tuple[int, ...], largest: float, generator: Any) -> Any:
    if not shape:
        return _normal(shape, largest, generator)
    return _normal((*shape[:-1], 1), largest, generator).expand(shape).clone()


def _integers(shape: tuple[int, ...], largest: float, generator: Any) -> Any:
    import torch

    # small enough that sums of products are exact in float32: any rounding at all is then a wrong format somewhere
    return torch.randint(-2, 3, shape, generator=generator, device=generator.device).to(torch.float32)


def _twins(shape: tuple[int, ...], largest: float, generator: Any) -> Any:
    return _normal(shape, largest, generator)


def _swapped(values: Any, generator: Any) -> Any:
    """The twin: the same values with some of them in each other's places. The ends, every even position, the sum, the least
    and the largest value agree, which is where a kernel that keeps its last answer would look before it trusts it."""
    import torch

    flat = values.flatten()
    inner = torch.arange(1, max(1, flat.numel() - 1), 2, device=generator.device)
    chosen = inner[torch.randperm(len(inner), generator=generator, device=generator.device)[: max(2, len(inner) // 4)]]
    flat[chosen] = flat[chosen.roll(1)]
    return flat.reshape(values.shape)


def _special(shape: tuple[int, ...], largest: float, generator: Any) -> Any:

    values = _normal(shape, largest, generator)
    flat = values.flatten()
    specials = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, largest]
    for position, special in enumerate(specials):
        # spread over the tensor, so that most rows stay finite
        if flat.numel():
            flat[int((position + 0.5) / len(specials) * flat.numel())] = special
    return flat.reshape(shape)


def _whole(shape: tuple[int, ...], spec: TensorSpec, names: Mapping[str, Any], generator: Any) -> Any:
    """Whole numbers from 0 up to the bound that an input declares, one in eight replaced by one of its further values."""
    import torch

    assert spec.below is not None
    device = generator.device
    values = torch.randint(0, max(1, int(evaluate(spec.below, names))), shape, generator=generator, device=device)
    if spec.sometimes:
        others = torch.tensor([int(evaluate(value, names)) for value in spec.sometimes], device=device)[
            torch.randint(0, len(spec.sometimes), shape, generator=generator, device=device)
        ]
        values = torch.where(torch.rand(shape, generator=generator, device=device) < 1 / 8, others, values)
    return values


def within(values: Any, domain: str, dtype: Any) -> Any:
    """`values` with those outside of a declared domain replaced; what becomes 0 in the tensor's own dtype is a 0. No randomness is used,
    so that all others are what they are without a domain. NaN stays NaN, infinities stay infinite."""
    import torch

    if domain == "any":
        return values
    if domain == "positive":
        values = values.abs()
    return values.masked_fill(values.to(dtype).to(torch.float32) == 0, 1.0)


DISTRIBUTIONS: dict[str, Callable[[tuple[int, ...], float, Any], Any]] = {
    "normal": _normal,
    "uniform": _uniform,
    "large": _large,
    "tiny": _tiny,
    "offset": _offset,
    "skewed": _skewed,
    "sparse": _sparse,
    "constant_rows": _constant_rows,
    "integers": _integers,
    "twins": _twins,
    "special": _special,
}


def allocate(operator: Operator, case: Case, dtype: str) -> Arena:
    """An arena for a case: inputs in the case's layout, outputs contiguous, everything poisoned."""
    scalars = operator.scalar_values(case.scalars)
    wanted = [(spec.name, "input", spec.dtype_for(dtype, scalars), full_shape(spec.shape, case.axes), case.layout) for spec in operator.inputs]
    wanted += [(spec.name, "output", spec.dtype_for(dtype, scalars), full_shape(spec.shape, case.axes), "contiguous") for spec in operator.outputs]
    return Arena.allocate(wanted)


def fill(arena: Arena, operator: Operator, case: Case, seed: int) -> None:
    """Values for every input, from `seed`. Same seed, same values, on every machine with the same torch (on a device: every such device).

    Twins come in pairs: an even seed and the odd one after it give inputs that differ in a few places only.
    """
    import torch

    if case.distribution not in DISTRIBUTIONS:
        raise unknown("distribution", case.distribution, DISTRIBUTIONS)
    make = DISTRIBUTIONS[case.distribution]
    twins = case.distribution == "twins"
    device = arena.bytes().device
    generator = torch.Generator(device).manual_seed(seed & ~1 if twins else seed)
    specs = {spec.name: spec for spec in operator.inputs}
    for name, tensor in arena.tensors("input").items():
        slot = next(slot for slot in arena.slots if slot.name == name)
        shape = tuple(1 if stride == 0 else extent for extent, stride in zip(slot.shape, slot.strides, strict=True))
        spec = specs[name]
        values = make(shape, DTYPES[slot.dtype].largest, generator) if spec.below is None else _whole(shape, spec, {**case.axes, **operator.scalar_values(case.scalars)}, generator)
        if twins and seed & 1:
            values = _swapped(values, torch.Generator(device).manual_seed(seed))
        target = tensor[tuple(slice(0, extent) for extent in shape)] if shape else tensor
        target.copy_(within(values, spec.domain, target.dtype))
