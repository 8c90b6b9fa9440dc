"""TensorSpec: one input or output of an operator, its shape, its dtype and what its values may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opforge.core.definition.shapes import Axes, Shape, axis_names, full_shape
from opforge.core.language.errors import UsageError
from opforge.core.language.fields import check_fields, wrong_field

ScalarValue = bool | int | float | str

DOMAINS = {"any": "", "nonzero": "never 0", "positive": "above 0"}
"""The domains that an input may declare, in words."""


TIES = ("any", "first", "last")

EXACT_STEPS = "exact"
"""What an output is rounded to whose steps are the reference's own, at ties too."""
FIELDS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "int8": 8, "uint8": 8}
"""Formats of values of which several may stand in one whole number, and their bits."""


@dataclass(frozen=True, kw_only=True)
class Ties:
    """Which index is right where several have the same score.

    rule     "any" of them (each once in a row), the "first" or the "last"
    scores   what is chosen from, along its last axis: the name of an input, or `scores(inputs, scalars)` in float64
    near     for scores that are computed: a relative difference, in units of eps(float32), up to which two of them
             count as equal under "any"
    """

    rule: str
    scores: str | Callable[[Mapping[str, Any], Mapping[str, ScalarValue]], Any]
    near: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.near < math.inf:
            raise wrong_field(self, "near", "must be finite and not below 0")


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One input or output: its name, its shape expression, and its dtype ("T" is the dtype of the case; the name of a
    parameter whose choices are dtypes leaves it to that parameter).

    below       for an input of whole numbers: an expression over the axes; values are drawn from 0 up to it, not
                including it, whatever the distribution of a case ("classes": valid indices of a class)
    least       where `below` is given: an expression for the first of those values; without it 0
    distinct    where `below` is given: no value is drawn twice as long as there are others (pages of a cache; a
                permutation)
    sometimes   further values that are mixed in among those, as expressions over axes and scalars ("ignore_index")
    domain      which numbers a caller may give: "any", "nonzero" (what is divided by) or "positive" (a variance). No
                case, the operator's own or a hidden one, has others; NaN and infinities stay, where a distribution has
                them: they have a place in every domain
    ties        for an output of indices: which of several equal ones is right. Whole numbers are compared exactly;
                without it, with the reference's own
    rounded_to  for an output that the reference rounds: the format of one value where several are packed into a whole
                number ("int4" in uint8), or "exact" where the reference's own step is the only right one, at ties too.
                Without it either step is right where the value before rounding lies as near to a tie as the arithmetic
                may be off
    overwrites  for an output: the input in whose memory it is written. Kernels are given that tensor once, as the
                input; a call returns the other outputs alone. The reference returns this one too, and leaves its
                arguments as they are
    optional    for an input: a call may leave it away. Functions are given None then, and cases, expressions and
                SUPPORTS have a parameter `has_NAME`, True unless they say otherwise
    offsets     for an input of whole numbers along one axis: the axis that they cut into segments, of which segment i
                goes from offset i up to offset i + 1. They begin with 0, do not decrease, and end with the size of that
                axis; cases have empty segments and a long one
    many        for an input that is a list of tensors, and for the output that overwrites it: the axis of its shape
                that has a size of its own in each of them. In cases and expressions that axis is a tuple, as long as
                the list: {"sizes": (3, 5)}
    """

    name: str
    shape: str
    dtype: str = "T"
    about: str = ""
    below: str | None = None
    least: str | None = None
    distinct: bool = False
    sometimes: tuple[str, ...] = ()
    domain: str = "any"
    ties: Ties | None = None
    rounded_to: str | None = None
    overwrites: str | None = None
    optional: bool = False
    offsets: str | None = None
    many: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.rounded_to not in (None, EXACT_STEPS, *FIELDS):
            raise wrong_field(self, "rounded_to", f'must be "{EXACT_STEPS}" or one of {", ".join(FIELDS)}')

    def dtype_for(self, dtype: str, scalars: Mapping[str, ScalarValue]) -> str:
        """The dtype this tensor has in a case of `dtype` with these parameters."""
        return dtype if self.dtype == "T" else str(scalars.get(self.dtype, self.dtype))


def check_overwritten(operator: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Raises UsageError for an output that overwrites no input of its shape and dtype, or one that another overwrites
    too.
    """
    known, taken = {spec.name: spec for spec in inputs}, set()
    for spec in inputs:
        if spec.overwrites is not None:
            raise UsageError(f"{operator}: input {spec.name} overwrites {spec.overwrites}: only outputs do. Remove it.")
    for spec in outputs:
        if spec.overwrites is None:
            continue
        target = known.get(spec.overwrites)
        if target is None:
            raise UsageError(
                f"{operator}: output {spec.name} overwrites {spec.overwrites!r}, which is no input: {', '.join(known)}."
            )
        if (target.shape.split(), target.dtype) != (spec.shape.split(), spec.dtype):
            raise UsageError(
                f"{operator}: output {spec.name} [{spec.shape}] {spec.dtype} overwrites {target.name} [{target.shape}] "
                f"{target.dtype}. What is overwritten keeps its shape and dtype: write both alike."
            )
        if target.name in taken:
            raise UsageError(f"{operator}: two outputs overwrite {target.name}. Each has an input of its own.")
        taken.add(target.name)


def check_optional(operator: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], given: set[str]) -> None:
    """Raises UsageError for an optional tensor that a call cannot do without: an output, the first input, what is
    overwritten, or the only one that has some axis.

    given   the axes that follow from others
    """
    known = given | {name for spec in inputs if not spec.optional for name in axis_names(spec.shape)}
    overwritten = {spec.overwrites for spec in outputs}
    for spec in outputs:
        if spec.optional:
            raise UsageError(f"{operator}: output {spec.name} is optional: only inputs are. Remove it.")
    for place, spec in enumerate(inputs):
        if not spec.optional:
            continue
        if place == 0 or spec.name in overwritten:
            reason = "comes first" if place == 0 else "is overwritten"
            raise UsageError(f"{operator}: input {spec.name} is optional and {reason}. Let every call give it.")
        alone = [name for name in axis_names(spec.shape) if name not in known]
        if alone:
            raise UsageError(
                f"{operator}: input {spec.name} is optional, and {', '.join(alone)} is an axis of no other. Name it in "
                "an input that every call gives, or let it follow from others (derived)."
            )


def check_offsets(operator: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Raises UsageError for offsets that are no vector of whole numbers, or that cut no axis of another input."""
    for spec in outputs:
        if spec.offsets is not None:
            raise UsageError(f"{operator}: output {spec.name} has offsets: only inputs are given any. Remove them.")
    for spec in inputs:
        if spec.offsets is None:
            continue
        if not spec.shape.isidentifier() or spec.dtype not in ("int32", "int64"):
            raise UsageError(
                f"{operator}: {spec.name} [{spec.shape}] {spec.dtype} has offsets: one axis of int32 or int64. Write "
                f'TensorSpec(name="{spec.name}", shape="bounds", dtype="int64", offsets="{spec.offsets}").'
            )
        if spec.below is not None or spec.domain != "any":
            raise UsageError(f"{operator}: {spec.name} has offsets, which say what its values are: remove the others.")
        cut = {token for other in inputs if other is not spec and not other.optional for token in other.shape.split()}
        if spec.offsets not in cut:
            raise UsageError(
                f"{operator}: {spec.name} has offsets along {spec.offsets!r}, which is no axis of another input. Name "
                f"one of: {', '.join(sorted(token for token in cut if token.isidentifier()))}."
            )


def check_lists(operator: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Raises UsageError for a list without an axis of its own, or one that is optional, ragged, or made by the call."""
    lists = {spec.many for spec in inputs if spec.many is not None}
    for spec in (*inputs, *outputs):
        tokens = spec.shape.split()
        if spec.many is None:
            if lists & set(axis_names(spec.shape)):
                raise UsageError(
                    f"{operator}: {spec.name} [{spec.shape}] has an axis whose size differs from tensor to tensor of a "
                    'list. Let its own follow from it: derived={"total": "sum(sizes)"}.'
                )
            continue
        if tokens.count(spec.many) != 1 or any("*" in token for token in tokens):
            raise UsageError(
                f"{operator}: {spec.name} [{spec.shape}] is a list along {spec.many!r}. Its shape has that axis once, "
                f'and no products or *names: TensorSpec(name="xs", shape="rows {spec.many}", many="{spec.many}").'
            )
        if spec.optional or spec.offsets is not None or spec.ties is not None:
            raise UsageError(f"{operator}: {spec.name} is a list: it is not optional, has no offsets and no ties.")
        if spec in outputs and spec.overwrites is None:
            raise UsageError(
                f"{operator}: output {spec.name} is a list that a call would make: let it overwrite one that is given."
            )
    many = {spec.name: spec.many for spec in inputs}
    for spec in outputs:
        if spec.overwrites is not None and many.get(spec.overwrites) != spec.many:
            raise UsageError(f"{operator}: output {spec.name} and {spec.overwrites} are a list, or neither is.")


def check_gradients(
    operator: str,
    gradient: str | None,
    further: Sequence[str],
    inputs: Sequence[TensorSpec],
    overwritten: Mapping[str, str],
) -> None:
    """Raises UsageError for gradient operators of an operator that has lists, or overwrites an input; and for further
    ones without a first.
    """
    if gradient is None:
        if further:
            raise UsageError(
                f"{operator} names {', '.join(further)} for further gradients, and none for the first. Name it: "
                f'gradient="{further[0]}".'
            )
        return
    if any(spec.many is not None for spec in inputs):
        raise UsageError(
            f"{operator} has lists, and names {gradient!r} for its gradients. The "
            "reference is differentiated there: remove `gradient`."
        )
    if overwritten:
        raise UsageError(
            f"{operator} overwrites {', '.join(overwritten)} and names {gradient!r} for its gradients. "
            "What overwrites its input has none: remove `gradient`, or give the output memory of its own."
        )


def shapes_of(spec: TensorSpec, axes: Axes) -> list[Shape]:
    """The sizes of a tensor, or of each tensor of a list."""
    if spec.many is None:
        return [full_shape(spec.shape, axes)]
    sizes = axes[spec.many]
    assert isinstance(sizes, tuple)
    return [full_shape(spec.shape, {**axes, spec.many: size}) for size in sizes]
