"""Input values: distributions chosen to show what a kernel gets wrong."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from opforge.core.definition.call_form import formed, layouts_of
from opforge.core.definition.dtypes import DTYPES, DType
from opforge.core.definition.operator import Case, Operator, TensorSpec
from opforge.core.definition.own_words import its_own_words
from opforge.core.definition.shapes import full_shape
from opforge.core.language.errors import unknown
from opforge.core.language.expr import evaluate
from opforge.runner.worker.arena import PLACES, Arena, Slot
from opforge.runner.worker.block_values import blocked_values, low_values

FLOAT16_LARGEST = DTYPES["float16"].largest


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
    # exp overflows in float32 from 88.7 on; 200 is far past it and a float16 still holds it and its square root of
    # squares
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


def _zeros(shape: tuple[int, ...], largest: float, generator: Any) -> Any:
    import torch

    return torch.zeros(shape, device=generator.device)


def _ones(shape: tuple[int, ...], largest: float, generator: Any) -> Any:
    import torch

    return torch.ones(shape, device=generator.device)


def _log_uniform(shape: tuple[int, ...], least: float, most: float, generator: Any) -> Any:
    """Magnitudes from 2^least to 2^most, every exponent as often as any other, signs at random."""
    import torch

    exponents = (
        torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64) * (most - least) + least
    )
    signs = torch.randint(0, 2, shape, generator=generator, device=generator.device) * 2 - 1
    return exponents.exp2() * signs


def _exponents(shape: tuple[int, ...], largest: float, generator: Any) -> Any:
    # a kernel that is wrong between 2000 and 1e30 alone is right for every normal number. An honest one may hold a few
    # times a value before it is done (PyTorch's gelu 2 * x): in a format with float32's range nothing is left for that.
    if largest > FLOAT16_LARGEST:
        return _log_uniform(shape, -126.0, math.log2(largest) - 4, generator)
    return _log_uniform(shape, -14.0, math.log2(largest), generator)


def _float16_range(shape: tuple[int, ...], largest: float, generator: Any) -> Any:
    # all that a tensor holds which was float16 before: what overflows in float16 alone does so here
    return _log_uniform(shape, -14.0, math.log2(min(largest, FLOAT16_LARGEST)), generator)


def _scaled(share: float) -> Callable[[tuple[int, ...], float, Any], Any]:
    """Normal numbers, each row (along the last axis) times a power of two of its own: up to 2^reach and down to
    2^-reach, where reach is this share of the format's largest exponent. Exponents are spread evenly over the rows, in
    an order and from a beginning that are drawn: a band of sizes that is as wide as the whole range over the rows has
    a row in it.
    """

    def make(shape: tuple[int, ...], largest: float, generator: Any) -> Any:
        import torch

        reach = int(share * math.log2(largest))
        rows, device = math.prod(shape[:-1]), generator.device
        begin = torch.rand((), generator=generator, device=device, dtype=torch.float64)
        places = (torch.randperm(rows, generator=generator, device=device) + begin) / max(1, rows)
        powers = (places * (2 * reach + 1)).floor() - reach
        values = _normal(shape, largest, generator).double()
        return values * powers.exp2().reshape((*shape[:-1], 1) if shape else ())

    return make


def _twins(shape: tuple[int, ...], largest: float, generator: Any) -> Any:
    return _normal(shape, largest, generator)


SWAPPED = 16
"""Values of a twin that are in each other's places. Few, so that a kernel that knows its inputs by some dozens of their
elements has seen none of them; more than two, so that rows change whose elements are added up.
"""


def _swapped(values: Any, generator: Any) -> Any:
    """The twin: the same values with a few of them in each other's places. The ends, every even position, the sum, the
    least and the largest value agree, and most of any elements that are picked: where a kernel that keeps its last
    answer would look before it trusts it.
    """
    import torch

    flat = values.flatten()
    inner = torch.arange(1, max(1, flat.numel() - 1), 2, device=generator.device)
    chosen = inner[torch.randperm(len(inner), generator=generator, device=generator.device)]
    chosen = chosen[: max(2, min(SWAPPED, len(inner) // 4))]
    flat[chosen] = flat[chosen.roll(1)]
    return flat.reshape(values.shape)


def _special(shape: tuple[int, ...], largest: float, generator: Any) -> Any:
    values = _normal(shape, largest, generator)
    flat = (values.double() if largest > DTYPES["float32"].largest else values).flatten()
    specials = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, largest]
    for position, special in enumerate(specials):
        # spread over the tensor, so that most rows stay finite
        if flat.numel():
            flat[int((position + 0.5) / len(specials) * flat.numel())] = special
    return flat.reshape(shape)


def _masked(shape: tuple[int, ...], largest: float, generator: Any) -> Any:
    """Normal values, -inf in every third place and in a tenth of the others: scores of masked keys, and log-sum-exps of
    rows without a key, in several inputs at once.
    """
    import torch

    values = _normal(shape, largest, generator)
    places = torch.arange(values.numel(), device=values.device).reshape(values.shape) % 3 == 0
    drawn = torch.rand(shape, generator=generator, device=generator.device) < 0.1
    return values.masked_fill(places | drawn, -float("inf"))


def _scattered(shape: tuple[int, ...], largest: float, generator: Any) -> Any:
    """What `special` has but the largest and the smallest value, at places that nobody can know: a kernel may let a NaN
    through where cases have one. Beside an infinity the largest may overflow to the other sign, and hardware may take
    the smallest for 0: NaN is as right then.
    """
    import torch

    values = _normal(shape, largest, generator)
    flat = values.flatten()
    specials = [float("nan"), float("nan"), float("inf"), -float("inf"), 0.0, -0.0]
    places = torch.randperm(flat.numel(), generator=generator, device=flat.device)
    for place, special in zip(places.tolist(), specials, strict=False):
        flat[place] = special
    return flat.reshape(shape)


def _all_digits(values: Any, generator: Any) -> Any:
    """float64 values of a distribution that was drawn in float32: each moved by less than an ulp of float32, so that a
    kernel which computes in float32 shows. 0, infinities and NaN stay.
    """
    import torch

    if values.dtype == torch.float64:
        return values
    moved = torch.rand(values.shape, generator=generator, device=values.device, dtype=torch.float64) * 2.0**-23
    return values.double() * (1 + moved)


def _whole(shape: tuple[int, ...], spec: TensorSpec, names: Mapping[str, Any], generator: Any) -> Any:
    """Whole numbers from the least (0) up to the bound that an input declares, one in eight replaced by one of its
    further values; each once before any stands twice, where they are distinct.
    """
    import torch

    assert spec.below is not None
    device = generator.device
    least = int(evaluate(spec.least, names)) if spec.least is not None else 0
    count = max(1, int(evaluate(spec.below, names)) - least)
    if spec.distinct:
        rounds = -(-math.prod(shape) // count)
        parts = [torch.randperm(count, generator=generator, device=device) for _ in range(rounds)]
        values = torch.cat([*parts, torch.zeros(0, dtype=torch.int64, device=device)])[: math.prod(shape)].view(shape)
    else:
        values = torch.randint(0, count, shape, generator=generator, device=device)
    values += least
    if spec.sometimes:
        others = torch.tensor([int(evaluate(value, names)) for value in spec.sometimes], device=device)[
            torch.randint(0, len(spec.sometimes), shape, generator=generator, device=device)
        ]
        values = torch.where(torch.rand(shape, generator=generator, device=device) < 1 / 8, others, values)
    return values


def _offsets(count: int, total: int, generator: Any) -> Any:
    """Where segments begin and end, in [0, total]: about a quarter of them is empty, one is as long as half of all."""
    import torch

    device, segments = generator.device, count - 1
    if segments < 1:
        return torch.zeros(count, dtype=torch.int64, device=device)
    lengths = torch.rand(segments, generator=generator, device=device, dtype=torch.float64)
    lengths *= torch.rand(segments, generator=generator, device=device) >= 1 / 4
    longest = torch.randint(0, segments, (1,), generator=generator, device=device)
    lengths[longest] = lengths.sum().clamp(min=1.0)
    ends = (lengths.cumsum(0) / lengths.sum() * total).round().long().clamp(max=total)
    ends[-1] = total
    return torch.cat([ends.new_zeros(1), ends])


SMALL = 8
"""Whole numbers up to this magnitude are drawn where a distribution is about ordinary values: sums of many stay in
16 bits.
"""
WIDE = (
    "large",
    "exponents",
    "scaled",
    "scaled_half",
    "scaled_quarter",
    "float16_range",
    "special",
    "scattered",
    "skewed",
)
"""Distributions that are about the ends of a format: whole numbers of all magnitudes then, and sums that wrap."""


EXACT = ("integers", "zeros", "ones", "constant_rows")
"""Distributions whose values are what they are."""


def _whole_numbers(kind: str, shape: tuple[int, ...], form: DType, generator: Any) -> Any:
    """Whole numbers, or True and False, of a format, as a distribution has them."""
    import torch

    device = generator.device
    least, most = max(form.least, -SMALL), min(form.most, SMALL)
    if kind in WIDE:
        bits = torch.randint(1, form.most.bit_length() + 1, shape, generator=generator, device=device)
        words = torch.empty(shape, dtype=torch.int64, device=device).random_(-(1 << 63), None, generator=generator)
        values = words.bitwise_and(torch.ones_like(words).bitwise_left_shift(bits - 1).mul(2).sub(1))
        values = torch.where(words < 0, -values, values) if form.least < 0 else values
    elif kind in ("zeros", "ones"):
        return torch.full(shape, int(kind == "ones"), device=device)
    else:
        rows = (*shape[:-1], 1) if kind == "constant_rows" and shape else shape
        values = torch.randint(least, most + 1, rows, generator=generator, device=device).expand(shape).clone()
    if kind == "sparse":
        values *= torch.rand(shape, generator=generator, device=device) < 0.1
    if kind == "special" and values.numel():
        ends = torch.tensor([form.least, form.most, 0, 1, form.most - 1, form.least + 1], device=device)
        places = torch.linspace(0, values.numel() - 1, len(ends), device=device).long()
        values.view(-1)[places] = ends
    return values


def within(values: Any, domain: str, dtype: Any) -> Any:
    """`values` with those outside of a declared domain replaced; what becomes 0 in the tensor's own dtype is a 0. No
    randomness is used,
    so that all others are what they are without a domain. NaN stays NaN, infinities stay infinite."""
    import torch

    if domain == "any":
        return values
    if domain == "positive":
        # the least whole number of a format has no counterpart
        values = values.abs() if values.is_floating_point() else values.clamp(min=1 - (1 << 63)).abs().to(dtype).abs()
        values = values.masked_fill(values < 0, 1)
    return values.masked_fill(values.to(dtype).to(torch.float32) == 0, 1)


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
    "zeros": _zeros,
    "ones": _ones,
    "exponents": _exponents,
    "float16_range": _float16_range,
    "scaled": _scaled(7 / 8),
    "scaled_half": _scaled(3 / 8),
    "scaled_quarter": _scaled(1 / 4),
    "twins": _twins,
    "special": _special,
    "scattered": _scattered,
    "masked": _masked,
    "low": lambda shape, largest, generator: low_values(shape, largest, _normal(shape, largest, generator), generator),
    "blocks": lambda shape, largest, generator: blocked_values(
        shape, largest, _normal(shape, largest, generator), generator
    ),
}


def allocate(operator: Operator, case: Case, dtype: str) -> Arena:
    """An arena for a case: inputs in the case's layout (one word for all of them, or one for each), outputs contiguous
    (and where the layout
    says, if it says where), everything poisoned. What is overwritten has one place, as an input."""
    scalars = operator.scalar_values(case.scalars)
    layouts = layouts_of(operator, {**case.axes, **scalars}, case.layout)
    operator = formed(operator, {**case.axes, **scalars})
    place = case.layout if case.layout in PLACES else "contiguous"
    wanted = [
        (
            spec.name,
            "input",
            spec.dtype_for(dtype, scalars),
            full_shape(spec.shape, case.axes),
            # elements that share an address have no values of their own to become
            "contiguous" if layout == "expanded" and spec.name in operator.overwritten else layout,
        )
        for spec in operator.inputs
        for layout in (layouts[spec.name],)
    ]
    wanted += [
        (spec.name, "output", spec.dtype_for(dtype, scalars), full_shape(spec.shape, case.axes), place)
        for spec in operator.fresh
    ]
    return Arena.allocate(wanted, operator.overwritten)


def fill(arena: Arena, operator: Operator, case: Case, seed: int) -> None:
    """Values for every input, from `seed`: by one word for all of them, or one for each.

    Same seed, same values, on every machine with the same torch (on a device:
    every such device).

    Twins come in pairs: an even seed and the odd one after it give inputs that differ in a few places only.
    """
    import torch

    for word in case.distribution.split():
        if word not in DISTRIBUTIONS:
            raise unknown("distribution", word, DISTRIBUTIONS)
    twins = case.distribution == "twins"
    drawn = layouts_of(operator, {**case.axes, **operator.scalar_values(case.scalars)}, case.distribution)
    device = arena.bytes().device
    generator = torch.Generator(device).manual_seed(seed & ~1 if twins else seed)
    operator = formed(operator, {**case.axes, **case.scalars})
    specs = {spec.name: spec for spec in operator.inputs}
    for name, tensor in arena.tensors("input").items():
        slot = next(slot for slot in arena.slots if slot.name == name)
        shape = tuple(1 if stride == 0 else extent for extent, stride in zip(slot.shape, slot.strides, strict=True))
        spec = specs[name]
        form = DTYPES[slot.dtype]
        if spec.offsets is not None:
            total = case.axes[spec.offsets]
            assert isinstance(total, int)
            values = _offsets(shape[0], total, generator)
        elif spec.below is not None:
            values = _whole(shape, spec, {**case.axes, **operator.scalar_values(case.scalars)}, generator)
        elif form.whole:
            values = _whole_numbers(drawn[name], shape, form, generator)
        else:
            values = DISTRIBUTIONS[drawn[name]](shape, form.largest, generator)
            if form.name == "float64" and drawn[name] not in EXACT:
                values = _all_digits(values, generator)
        if twins and seed & 1 and spec.offsets is None:
            values = _swapped(values, torch.Generator(device).manual_seed(seed))
        target = distinct(slot, tensor)
        target.copy_(within(values, spec.domain, target.dtype))
    if operator.follows is not None:
        _follow(arena, operator, case)


def _follow(arena: Arena, operator: Operator, case: Case) -> None:
    """Puts what follows from other inputs in its place. Raises UsageError for what is no input of that shape."""
    import torch

    assert operator.follows is not None
    inputs = arena.tensors("input")
    wide = {name: item.to(torch.float64) if item.is_floating_point() else item for name, item in inputs.items()}
    with torch.no_grad(), its_own_words(operator, "function `follows`", case):
        made = operator.follows(wide, operator.scalar_values(case.scalars))
        if not isinstance(made, Mapping):
            raise TypeError(f"it returns a {type(made).__name__}, no dict of inputs to tensors")
        for name, values in made.items():
            if name not in inputs or values.shape != inputs[name].shape:
                raise ValueError(f"{name} of shape {tuple(values.shape)} is no input with that shape")
            slot = next(slot for slot in arena.slots if slot.name == name)
            target = distinct(slot, inputs[name])
            target.copy_(values[tuple(slice(0, extent) for extent in target.shape)])


def distinct(slot: Slot, tensor: Any) -> Any:
    """The elements of a slot's tensor that lie at addresses of their own: the first along an axis of stride 0."""
    shape = tuple(1 if stride == 0 else extent for extent, stride in zip(slot.shape, slot.strides, strict=True))
    return tensor[tuple(slice(0, extent) for extent in shape)] if shape else tensor
