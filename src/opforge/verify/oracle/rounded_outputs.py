"""Outputs that a reference rounds: at a tie either neighbour is right.

In float32 x / scale may lie a last digit beside what it is in float64. Where float64's stands within that of a tie, the
rounded value is one step off, and right. So the reference is run again, with each of its roundings moved to one side
and the other by what the arithmetic may be off by: what it gives then is as right as what it gave at first. Anywhere
else all of these runs agree, and nothing but the one answer is right.

Asked only where an output is wrong without it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.tensors import EXACT_STEPS, FIELDS

ROUNDINGS = ("round", "floor", "ceil", "trunc", "fix")
QUOTIENTS = ("floor_divide", "div", "remainder", "fmod")
THRESHOLDS = ("gt", "ge", "lt", "le", "bucketize", "searchsorted")
"""Steps that are made by comparison: codes of a format with few values."""
PACKING = (
    *("bitwise_or", "bitwise_and", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift"),
    *("__or__", "__and__", "__lshift__", "__rshift__"),
)
CONSTANTS = (
    *(f"{kind}{form}" for kind in ("full", "zeros", "ones", "empty") for form in ("", "_like")),
    *("new_full", "new_zeros", "new_ones", "new_empty", "new_empty_strided", "empty_strided"),
    *("arange", "eye", "scalar_tensor", "lift_fresh", "zero"),
)
"""What is the same in any arithmetic, whatever was computed before: positions are counted from it."""
MOVES = (
    *("view", "_unsafe_view", "reshape", "permute", "transpose", "t", "movedim", "expand", "squeeze", "unsqueeze"),
    *("slice", "select", "split", "split_with_sizes", "chunk", "unbind", "unfold", "diagonal", "as_strided", "alias"),
    *("clone", "contiguous", "detach", "_to_copy", "copy", "repeat", "cat", "stack", "flip", "roll", "constant_pad_nd"),
    *("index", "gather", "index_select", "where", "masked_fill", "sort", "topk", "max", "min", "amax", "amin"),
    *("fill", "index_put", "scatter", "slice_scatter", "select_scatter", "tril", "triu"),
    *("abs", "neg", "clamp", "clamp_min", "clamp_max", "minimum", "maximum"),
)
"""What takes values from one place to another, and computes nothing with them."""
WHOLE = ("add", "sub", "rsub", "mul")
"""What gives exact results of whole numbers that are small enough."""

ZERO_POINT = 256.0
"""The most that stands beside a value before it is rounded: a zero point of 8 bits."""
TOGETHER = 3
"""Roundings of a reference up to which every choice of sides is tried; of more each alone, and all at once."""
MOST = 16
KEPT = 1 << 16
"""Elements of an output up to which alternatives are kept, and every choice of sides is tried."""
FIELD = 4
"""Bits of one value where several stand in one whole number, unless the definition says otherwise."""


@dataclass(kw_only=True)
class Roundings:
    """The roundings of a reference on the inputs of one case.

    reference   the function; `arguments` are its tensors in float64 and `scalars` its parameters
    outputs     the names of what it returns, in order
    relative    what the arithmetic may be off by, relative to the size of what was added up
    sizes       by output: that size, or the error itself (see `errors`), where the definition says so
    errors      by output: what the arithmetic may be off by, in the unit of the result
    """

    reference: Callable[..., Any]
    arguments: Callable[[], Sequence[Any]]
    scalars: Mapping[str, Any]
    outputs: tuple[str, ...]
    relative: float
    sizes: Mapping[str, Any] = field(default_factory=dict)
    errors: Mapping[str, Any] = field(default_factory=dict)
    packs: bool = False
    _kept: dict[tuple[int, ...], Mapping[str, Any]] = field(default_factory=dict)
    _count: int | None = None

    def runs(self, large: bool) -> Iterator[Mapping[str, Any]]:
        """What the reference gives with its roundings moved: outputs by name, run by run."""
        if self._count is None:
            self._run(())
        count = self._count or 0
        if not count or count > MOST:
            return
        alone = [
            tuple(side if place == moved else 0 for place in range(count)) for moved in range(count) for side in (-1, 1)
        ]
        chosen = [*alone, (-1,) * count, (1,) * count]
        if count <= TOGETHER and not large:
            chosen += [sides for sides in itertools.product((-1, 0, 1), repeat=count) if any(sides)]
        for sides in dict.fromkeys(chosen):
            found = self._kept.get(sides)
            if found is None:
                try:
                    found = self._run(sides)
                except (RuntimeError, IndexError, ValueError):
                    # a value that is an index afterwards may have no neighbour there: then only the first answer is
                    continue
                if not large:
                    self._kept[sides] = found
            yield found

    def _run(self, sides: Sequence[int]) -> Mapping[str, Any]:
        import torch

        mode = _moved(self, sides)
        arguments = list(self.arguments())
        for tensor in arguments:
            mode.exact(tensor)
        with torch.no_grad(), mode:
            returned = self.reference(*arguments, **self.scalars)
        self._count = mode.sites
        self.packs = self.packs or mode.packs
        values = returned if isinstance(returned, tuple) else (returned,)
        return dict(zip(self.outputs, values, strict=True))

    def off(self, values: Any) -> Any:
        """What `values`, which are about to be rounded, may be off by."""
        for given, factor in ((self.errors, 1.0), (self.sizes, self.relative)):
            for tensor in given.values():
                if tensor.numel() == values.numel():
                    return factor * tensor.abs().reshape(values.shape).to(values.dtype)
        size = values.abs()
        if not values.numel():
            return size
        beside = (size.amax(-1, keepdim=True) if values.ndim else size).nan_to_num(nan=0.0).clamp(max=ZERO_POINT)
        return self.relative * (size + beside) + 2.0 ** DTYPES["float32"].min_exponent


def at_ties(actual: Any, expectation: Any, right: Callable[[Any, Any], Any]) -> Any:
    """The Expectation with the other neighbour wherever that one is right and `actual` has it.

    right   which elements of `actual` an Expectation finds right: a bool tensor
    """
    import torch

    roundings, name = expectation.roundings, expectation.output
    large = expectation.expected.numel() > KEPT
    got = actual.detach()
    todo = ~right(got, expectation)
    for found in roundings.runs(large):
        other = found[name]
        if expectation.exact is None:
            taken = replace(expectation, expected=other.to(torch.float64))
            hit = todo & right(got, taken)
            expected = torch.where(hit, taken.expected, expectation.expected)
            expectation = replace(expectation, expected=expected)
        else:
            whole, mine = other.to(torch.int64), got.to(torch.int64)
            hit = todo & (whole == mine)
            exact = torch.where(hit, mine, expectation.exact)
            expectation = replace(expectation, exact=exact, expected=exact.to(torch.float64))
        todo &= ~hit
        if not bool(todo.any()):
            return expectation
    if expectation.exact is not None:
        width = FIELDS.get(expectation.rounded_to or "", FIELD if roundings.packs else 0)
        hit = todo & _by_fields(got, expectation, large, width) if width else _between(got, expectation, large) & todo
        exact = torch.where(hit, got.to(torch.int64), expectation.exact)
        expectation = replace(expectation, exact=exact, expected=exact.to(torch.float64))
    return expectation


def _by_fields(got: Any, expectation: Any, large: bool, width: int) -> Any:
    """Where each field of a packed number is that of one of the answers: two values in one byte may both be ties."""
    import torch

    bits = 8 * got.element_size()
    right = torch.ones_like(got, dtype=torch.bool)
    answers = [expectation.exact, *(found[expectation.output] for found in expectation.roundings.runs(large))]
    for first in range(0, bits, width):
        mask = (1 << width) - 1

        def part(whole: Any, first: int = first, mask: int = mask) -> Any:
            return (whole.to(torch.int64) >> first) & mask

        mine = part(got)
        right &= torch.stack([part(answer) == mine for answer in answers]).any(0)
    return right


def _between(got: Any, expectation: Any, large: bool) -> Any:
    """Where float32 is off by more than a step, whatever lies between the two sides."""
    import torch

    # from half of this on a value's last digits in float32 are more than a step
    coarse = expectation.exact.abs().to(torch.float64) * expectation.roundings.relative >= 0.5
    if not bool(coarse.any()):
        return torch.zeros_like(coarse)
    answers = torch.stack(
        [
            expectation.exact,
            *(found[expectation.output].to(torch.int64) for found in expectation.roundings.runs(large)),
        ]
    )
    mine = got.to(torch.int64)
    return coarse & (mine >= answers.amin(0)) & (mine <= answers.amax(0))


def rounds(rounded_to: str | None) -> bool:
    """Whether an output may be a step off at a tie."""
    return rounded_to != EXACT_STEPS


def _moved(roundings: Roundings, sides: Sequence[int]) -> Any:
    """The mode that moves each rounding to its side: -1, 0 or 1. Made here, since its base is torch's."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.weak import WeakTensorKeyDictionary

    class Moved(TorchDispatchMode):  # type: ignore[misc, unused-ignore]  # torch leaves it untyped
        """Counts roundings of values that were computed, and moves them."""

        def __init__(self) -> None:
            super().__init__()
            self.sites = 0
            self.packs = False
            self._exact: Any = WeakTensorKeyDictionary()
            # memory into a part of which something computed was written
            self._mixed: set[int] = set()

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            """torch's wrapper around each operation imports torch._dynamo: it took a third of a run."""
            return False

        def exact(self, tensor: Any) -> None:
            """Nothing is computed in these values: they are the same in any arithmetic."""
            if isinstance(tensor, torch.Tensor):
                self._exact[tensor] = True

        def _known(self, tensor: Any) -> bool:
            return tensor in self._exact and tensor.untyped_storage()._cdata not in self._mixed

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            name = func.overloadpacket.__name__
            plain = name.rstrip("_") if not name.startswith("__") else name
            self.packs = self.packs or (bool(self.sites) and plain in PACKING)
            where = self._rounded(plain, args, kwargs)
            if where is not None:
                side = sides[self.sites] if self.sites < len(sides) else 0
                self.sites += 1
                if side:
                    value = args[where]
                    # of a quotient that is rounded in one step, what is divided stands for it
                    off = roundings.relative * value.abs() if plain in QUOTIENTS else roundings.off(value)
                    aside = value + side * off
                    if name != plain and where == 0:
                        value.copy_(aside)
                    else:
                        args = (*args[:where], aside, *args[where + 1 :])
            result = func(*args, **kwargs)
            self._mark(plain, func, args, kwargs, result, where is not None)
            return result

        def _rounded(self, plain: str, args: Any, kwargs: Mapping[str, Any]) -> int | None:
            """Which argument is rounded, if it was computed."""
            place = 1 if plain == "copy" else 0
            if len(args) <= place or not isinstance(args[place], torch.Tensor) or not args[place].is_floating_point():
                return None
            if plain == "floor_divide" or (plain == "div" and kwargs.get("rounding_mode")):
                return place
            if plain == "_to_copy":
                rounded = _coarser(args[0].dtype, kwargs.get("dtype"))
            elif plain == "copy":
                rounded = _coarser(args[1].dtype, args[0].dtype)
            else:
                rounded = plain != "div" and plain in (*ROUNDINGS, *QUOTIENTS, *THRESHOLDS)
            return place if rounded and not self._known(args[place]) else None

        def _mark(self, plain: str, func: Any, args: Any, kwargs: Any, result: Any, rounded: bool) -> None:
            given = [one for one in _flat((args, kwargs)) if isinstance(one, torch.Tensor)]
            known = all(self._known(tensor) for tensor in given if tensor.is_floating_point())
            in_place = plain != func.overloadpacket.__name__ or plain == "copy"
            for one in _flat(result):
                if not isinstance(one, torch.Tensor) or not one.is_floating_point():
                    continue
                whole = plain in ROUNDINGS or (plain == "_to_copy" and rounded)
                moved = plain in CONSTANTS or (plain in MOVES and known)
                counted = plain in WHOLE and known and _all_whole(one, args)
                memory = one.untyped_storage()._cdata
                if whole or moved or counted:
                    self._exact[one] = True
                    if not in_place:
                        # new memory may lie where other memory was
                        self._mixed.discard(memory)
                    continue
                self._exact.pop(one, None)
                if in_place:
                    self._mixed.add(memory)

    return Moved()


def _coarser(source: Any, target: Any) -> bool:
    """Whether a conversion rounds by more than float32's arithmetic does."""
    import torch

    if target is None or not source.is_floating_point or target == torch.bool or target.is_complex:
        return False
    return not target.is_floating_point or (target.itemsize <= 2 and target != source)


def _flat(given: Any) -> Iterator[Any]:
    if isinstance(given, (tuple, list)):
        for one in given:
            yield from _flat(one)
    elif isinstance(given, Mapping):
        yield from _flat(list(given.values()))
    else:
        yield given


def _all_whole(tensor: Any, args: Any) -> bool:
    numbers = [one for one in _flat(args) if isinstance(one, float)]
    return all(math.isfinite(one) and one.is_integer() for one in numbers) and bool((tensor == tensor.trunc()).all())
