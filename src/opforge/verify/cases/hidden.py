"""Hidden cases: drawn at run time from the operator's definition, so that no kernel can be right for the known cases
alone.

Axes, values and layouts come from the operating system's randomness; every case carries the seed of its values, and the
record keeps all of it, so a failure replays exactly. Quotas follow PyTorch's OpInfo samples: about 10 % without an
element, about 8 % not contiguous.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from opforge.core.definition.operator import Case, Operator
from opforge.core.definition.shapes import AxisValue, tokens
from opforge.core.definition.tensors import shapes_of
from opforge.core.language.errors import UsageError
from opforge.verify.cases.extreme_values import BLOCKS, EXTREMES, LOW, NARROWER, SCATTERED

ZERO_SIZE = 0.10
NOT_CONTIGUOUS = 0.08
LAYOUTS = ("transposed", "sliced", "strided", "misaligned", "expanded", "channels_last")
FENCED = 2
PLACES = ("ordinary", "offset_16", "offset_32")
"""Where the tensors of hidden contiguous cases lie, besides an aligned address between guards: before pages that cannot
be touched (of the first FENCED cases of extreme values: who reads there is found whatever the values are), in
allocations as users make them, 16 and 32 bytes past an aligned address (of cases of ordinary values: 1 too much is
nothing beside 2^100).
"""
GENERAL = (
    "normal",
    "uniform",
    "integers",
    "sparse",
    "skewed",
    "twins",
    *(kind for kind in EXTREMES if kind not in (SCATTERED, BLOCKS, *NARROWER.values())),
)
"""Distributions that every operator must bear. "large", "tiny", "offset", "constant_rows" and "special" are drawn only
where
the operator has a case of its own with them: it is the definition that says where its bound is meant to hold."""

LARGEST_AXIS = 4096


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much verification may cost.

    hidden        hidden cases to draw
    elements      the largest tensor of a hidden case; `emulated_elements` where the device is interpreted or emulated
    own           False keeps only a selection of the operator's own cases
    seconds       when this much time has gone into hidden cases and repeats, no more are begun; `least_hidden` are run
                  in any case: in DEFAULT the extremes, the places and what "special" has elsewhere, which a busy
                  machine left out
    repeats       how often one small case is run again, bit by bit compared: a race that shows in 1 % of the calls is
                  missed with probability 0.99^repeats, 5 % for 300
    shrink_s      how long a failing case may be shrunk
    """

    hidden: int
    elements: int
    emulated_elements: int
    own: bool
    seconds: float
    least_hidden: int
    repeats: int
    shrink_s: float


DEFAULT = Effort(
    hidden=24,
    elements=1 << 15,
    emulated_elements=1 << 11,
    own=True,
    seconds=2.0,
    least_hidden=10,
    repeats=300,
    shrink_s=4.0,
)
BRIEF = Effort(
    hidden=8,
    elements=1 << 13,
    emulated_elements=1 << 9,
    own=True,
    seconds=0.5,
    least_hidden=6,
    repeats=60,
    shrink_s=2.0,
)
"""Before a bench: all of the operator's own cases, a few hidden ones; the workload itself is verified on top."""
QUICK = Effort(
    hidden=8,
    elements=1 << 12,
    emulated_elements=1 << 9,
    own=False,
    seconds=0.3,
    least_hidden=3,
    repeats=40,
    shrink_s=1.0,
)
EXACT = Effort(
    hidden=0, elements=0, emulated_elements=0, own=True, seconds=0.0, least_hidden=0, repeats=0, shrink_s=0.0
)
"""The cases given and nothing else: for replays, and for a tuner that runs the same kernel a hundred times."""


HUGE = ("large", "special")
"""Beside such values a small error is within its bound: they are no distribution to ask a place with."""


def distributions(operator: Operator, dtype: str) -> tuple[str, ...]:
    """The distributions that hidden cases of this dtype draw from."""
    own = {case.distribution for case in operator.cases if case.dtype in (None, dtype)}
    return tuple(dict.fromkeys((*GENERAL, *sorted(own), *((SCATTERED, BLOCKS) if "special" in own else ()))))


def elements(operator: Operator, case: Case) -> int:
    """Elements of the largest tensor of a case."""
    whole = operator.whole
    specs = (*whole.inputs, *whole.outputs)
    return max((math.prod(shape) for spec in specs for shape in shapes_of(spec, case.axes)), default=0)


SHORT = 4
"""Columns from which a row counts: the variance of one element is 0 whatever a kernel does."""


ROWS = 128
"""Rows of every size lie a binade and a half apart then: float32's range, as far as anything is squared in it, has 95
binades, and 223 where nothing is."""
SHORTER = (7, 16, 5)
"""Columns of such rows: as many as vectors and blocks have, or not."""


def rows(operator: Operator, case: Case) -> int:
    """Rows of at least SHORT elements, along the last axis, of the input of a case that has most of them."""
    shapes = (shape for spec in operator.whole.inputs for shape in shapes_of(spec, case.axes))
    return max((math.prod(shape[:-1]) for shape in shapes if shape and shape[-1] >= SHORT), default=0)


LONG = 65_537
"""More than the blocks of a CUDA grid in y and z (65,535), and than anybody checks by eye."""
LONGEST = LONG + (1 << 12)
MOST_OF_LONG = 1 << 19
"""Elements of the largest tensor of a long case."""


def long_case(operator: Operator, dtype: str, own: Sequence[Case], draw: random.Random) -> Case | None:
    """A case in which one axis is longer than a grid may be, all others as short as they may be: the first of those
    that all outputs have, so that nothing need be added up along it, and that may be so long. None where there is none.
    """
    outputs = [[token.removeprefix("*") for token in tokens(spec.shape)] for spec in operator.outputs]
    axes = [name for name in outputs[0] if name in operator.free_axes and all(name in row for row in outputs)]
    plain = [case for case in own if case.distribution == "normal" and case.axes and elements(operator, case)]
    # of one element a softmax is 1 and a variance 0, whatever row it is of
    for name, short in itertools.product(axes if plain else (), ((2, 4), (1, 2), None)):
        base = draw.choice(plain) if short else min(plain, key=lambda case: elements(operator, case))
        sizes: dict[str, AxisValue] = {}
        for other in operator.free_axes:
            value = base.axes.get(other, 1)
            if short is not None:
                value = tuple(1 for _ in value) if isinstance(value, tuple) else draw.randrange(*short)
            sizes[other] = value
        long, shorter = draw.randrange(LONG, LONGEST), sizes[name]
        sizes[name] = (long, *shorter[1:]) if isinstance(shorter, tuple) else long
        fitting = _fitting(operator, dtype, base, sizes, MOST_OF_LONG, empty=False)
        if fitting is not None:
            return Case(
                name=f"hidden_long_{name}",
                axes=fitting,
                why="an axis longer than a grid of blocks may be in y and z",
                scalars=base.scalars,
                seed=draw.randrange(1 << 62) * 2,
            )
    return None


def hidden_cases(
    operator: Operator, dtype: str, *, count: int, most_elements: int, source: random.Random | None = None
) -> tuple[Case, ...]:
    """`count` cases that satisfy the operator's constraints, or fewer when the constraints leave few. Before them comes
    one of NaN and infinities at any place, of an operator with a case of such.

    most_elements   the largest tensor of a case
    source          randomness; the operating system's by default
    """
    draw = source or random.SystemRandom()
    own = [case for case in operator.cases if case.dtype in (None, dtype)] or [Case(name="", axes={}, why="")]
    kinds = [
        kind for kind in distributions(operator, dtype) if kind not in ("exponents", "scaled", SCATTERED, BLOCKS, LOW)
    ]
    draw.shuffle(kinds)
    plain = [kind for kind in kinds if kind not in HUGE][: len(PLACES)]
    rest = [kind for kind in kinds if kind not in plain]
    first = ["exponents", "scaled"]
    draw.shuffle(first)
    places = list(PLACES)
    draw.shuffle(places)
    # by turns, since only the first are run whatever time is left; what "special" has, an own case asks as well
    kinds, layouts_of_first = [], []
    if any(case.distribution == "special" for case in own):
        # before all others: an own case's NaN is where it is, and whoever knows that lets that one through
        kinds, layouts_of_first = [SCATTERED], ["contiguous"]
    for turn in range(len(PLACES)):
        if turn < len(first):
            kinds.append(first[turn])
            layouts_of_first.append("fenced" if turn < FENCED else "contiguous")
        kinds += plain[turn : turn + 1]
        layouts_of_first += places[turn : turn + 1]
    together = [BLOCKS, LOW] if SCATTERED in kinds else [LOW]
    kinds += together
    layouts_of_first += ["contiguous"] * len(together)
    kinds += [kind for kind in rest if kind not in together]
    # channels last means something for four axes; elsewhere it would be one more contiguous case
    layouts = [
        layout
        for layout in LAYOUTS
        if layout != "channels_last"
        or any(len(tokens(spec.shape)) == 4 and "*" not in spec.shape for spec in operator.inputs)
    ]
    zeros = round(count * ZERO_SIZE)
    irregular = round(count * NOT_CONTIGUOUS)
    count += bool(count) * (len(together) + (SCATTERED in kinds))
    cases: list[Case] = []
    for number in range(count):
        empty = number >= count - zeros
        kind = kinds[number % len(kinds)]
        # few elements have few exponents, and few rows few powers of two
        tries = 6 if kind in ("exponents", "scaled") and not empty else 1
        drawn = [
            axes
            for _ in range(tries)
            if (axes := _drawn_axes(operator, dtype, draw, own, most_elements, empty)) is not None
        ]
        if not drawn:
            continue
        measure = rows if kind == "scaled" else elements
        base, sizes = max(drawn, key=lambda item: measure(operator, Case(name="", axes=item[1], why="")))
        if kind == "scaled" and not empty:
            sizes = _with_rows(operator, dtype, base, sizes, most_elements)
        layout = layouts_of_first[number] if number < len(layouts_of_first) and not empty else "contiguous"
        if count - zeros - irregular <= number < count - zeros:
            layout = draw.choice(layouts)
        if kind in (LOW, BLOCKS) and not empty:
            sizes = _with_columns(operator, dtype, base, sizes, most_elements)
        if kind in (SCATTERED, BLOCKS, "special", "large", "offset", "tiny", "constant_rows"):
            like = "special" if kind in (SCATTERED, BLOCKS) else kind
            # an operator that restricts these values to some scalars says so by its own cases
            base = draw.choice([case for case in own if case.distribution == like])
            sizes = operator.completed(sizes, operator.scalar_values(base.scalars))
            if like == "special" and not empty and (kind != BLOCKS or leading_axis(operator) is None):
                # which rows and columns a NaN reaches depends on the shape: the definition's own shape was chosen for
                # it
                sizes = dict(base.axes)
        case = Case(
            name=f"hidden_{number}_{kind}"
            + (f"_{layout}" if layout != "contiguous" else "")
            + ("_empty" if empty else ""),
            axes=sizes,
            why="drawn at run time",
            distribution=kind,
            layout=layout,
            scalars=base.scalars,
            seed=draw.randrange(1 << 62) * 2,
        )
        chosen = {scalar.name: draw.random() < 0.5 for scalar in operator.presence}
        both = [dataclasses.replace(case, scalars={**case.scalars, **chosen}), case] if chosen else [case]
        for drawn_case in both:
            if operator.violated(case.axes, dtype, operator.scalar_values(drawn_case.scalars)) is None:
                cases.append(drawn_case)
                break
    if count and most_elements >= DEFAULT.elements:
        # among the first, which are run whatever time is left; an interpreter would take minutes
        long = long_case(operator, dtype, own, draw)
        cases[1:1] = [long] if long is not None else []
    return tuple(cases)


def reduced(operator: Operator, cases: Sequence[Case], most_elements: int) -> tuple[Case, ...]:
    """A selection of an operator's own cases: of each distribution, layout and set of scalars the smallest that is
    worth
    running, and the largest plain one, all with at most `most_elements` in a tensor (or the smallest of all)."""
    kept: dict[object, Case] = {}
    small = [case for case in cases if elements(operator, case) <= most_elements] or list(cases)[:1]
    for case in sorted(small, key=lambda case: (elements(operator, case) < 64, elements(operator, case))):
        kept.setdefault(
            (case.distribution, case.layout, tuple(case.scalars.items()), elements(operator, case) == 0), case
        )
    plain = [case for case in small if case.distribution == "normal" and case.layout == "contiguous"]
    if plain:
        kept["largest"] = max(plain, key=lambda case: elements(operator, case))
    chosen = {case.name for case in kept.values()}
    return tuple(case for case in cases if case.name in chosen)


def _sizes(draw: random.Random, most: int) -> Iterator[int]:
    """Sizes that show what a kernel assumes: one, odd, prime, a power of two, one past it, one short of it."""
    while True:
        power = 1 << draw.randrange(1, max(2, most.bit_length()))
        kind = draw.choice(("one", "odd", "prime", "power", "past", "short", "any"))
        size = {
            "one": 1,
            "odd": 2 * draw.randrange(max(1, power)) + 1,
            "prime": _prime_up_to(max(2, draw.randrange(1, 2 * power + 1))),
            "power": power,
            "past": power + 1,
            "short": max(1, power - 1),
            "any": draw.randrange(1, 2 * power + 1),
        }[kind]
        if size <= most:
            yield size


def _prime_up_to(n: int) -> int:
    return next((p for p in range(n, 1, -1) if all(p % q for q in range(2, math.isqrt(p) + 1))), 2)


def _drawn_axes(
    operator: Operator, dtype: str, draw: random.Random, own: Sequence[Case], most: int, empty: bool
) -> tuple[Case, dict[str, AxisValue]] | None:
    """A case of the operator's own, for its scalars, and axes near nothing it has; None when no draw satisfies the
    constraints.
    """
    variadic = {
        token[1:]
        for spec in (*operator.inputs, *operator.outputs)
        for token in tokens(spec.shape)
        if token.startswith("*")
    }
    sizes = _sizes(draw, min(most, LARGEST_AXIS))
    for attempt in range(200):
        base = draw.choice(own)
        axes: dict[str, AxisValue] = {}
        for name in operator.free_axes:
            # after a hundred misses the constraints are narrow: then most axes stay as the operator's own case has them
            if name in base.axes and (draw.random() < (0.1 if attempt < 100 else 0.7)):
                axes[name] = base.axes[name]
            elif name in operator.list_axes:
                axes[name] = tuple(next(sizes) for _ in range(draw.choice((1, 2, 3, 5))))
            elif name in variadic:
                axes[name] = tuple(max(1, int(next(sizes) ** 0.5)) for _ in range(draw.choice((0, 1, 1, 2, 2, 3))))
            else:
                axes[name] = next(sizes)
        if empty:
            name = draw.choice(operator.free_axes)
            value = axes[name]
            # of a list all are empty: a few that are not would have something to compute
            axes[name] = (
                (0,) * len(value)
                if name in operator.list_axes and isinstance(value, tuple)
                else (0, *value[1:])
                if isinstance(value, tuple)
                else 0
            )
        fitting = _fitting(operator, dtype, base, axes, most, empty)
        if fitting is not None:
            return base, fitting
    return None


def _fitting(
    operator: Operator, dtype: str, base: Case, axes: dict[str, AxisValue], most: int, empty: bool
) -> dict[str, AxisValue] | None:
    """These axes with those that follow from them; None where they break a constraint, are more than `most` elements or
    too much work for them, or where a tensor is empty and none should be, or the other way round.
    """
    try:
        axes = operator.completed(axes, operator.scalar_values(base.scalars))
        if operator.violated(axes, dtype, operator.scalar_values(base.scalars)) is not None:
            return None
        size = elements(operator, Case(name="", axes=axes, why=""))
        work = operator.cost(axes, dtype).flops
    except (UsageError, ArithmeticError, IndexError, TypeError):
        # an expression that cannot be evaluated for these axes is a constraint told in another way
        return None
    if size <= most and work <= 512 * most and (size == 0 or not empty) and (empty or size > 0):
        # zero-size: some tensor is empty; elsewhere none is
        shapes = [math.prod(shape) for spec in operator.inputs for shape in shapes_of(spec, axes)]
        if empty == (0 in shapes):
            return axes
    return None


def _with_rows(
    operator: Operator, dtype: str, base: Case, axes: dict[str, AxisValue], most: int
) -> dict[str, AxisValue]:
    """Axes with ROWS rows, or as many as there may be: one axis larger and another one smaller than in these, which are
    what comes back where that gives no more. A band of sizes that few rows lie apart by is missed.
    """
    best, reached = axes, rows(operator, Case(name="", axes=axes, why=""))
    pairs = itertools.product(operator.free_axes, operator.free_axes)
    for (more, less), count, columns in itertools.product(pairs, (ROWS, ROWS // 2, ROWS // 4), SHORTER):
        if reached >= ROWS:
            break
        one_list = more == less and isinstance(axes[more], tuple)
        if reached >= count or (more == less and not one_list):
            continue
        changed: dict[str, AxisValue] = {more: (count, columns)} if one_list else {}
        for name, size in () if one_list else ((more, count), (less, columns)):
            changed[name] = (size,) if isinstance(axes[name], tuple) else size
        sizes = _fitting(operator, dtype, base, {**axes, **changed}, most, empty=False)
        found = rows(operator, Case(name="", axes=sizes, why="")) if sizes is not None else 0
        if sizes is not None and found > reached:
            best, reached = sizes, found
    return best


COLUMNS = (160, 200, 97)
"""Columns of rows whose first or last part is low or -inf: more than one block of most kernels."""
SOME_ROWS = 12


def _with_columns(
    operator: Operator, dtype: str, base: Case, axes: dict[str, AxisValue], most: int
) -> dict[str, AxisValue]:
    """Axes with some rows of several blocks, where an operator has rows; else these."""
    lead, shape = leading_axis(operator), tokens(operator.inputs[0].shape)
    if lead is None or len(shape) != 2 or shape[1] not in operator.free_axes:
        return axes
    for columns in COLUMNS:
        changed = {**axes, lead: (SOME_ROWS,), shape[1]: columns}
        fitting = _fitting(operator, dtype, base, changed, most, empty=False)
        if fitting is not None:
            return fitting
    return axes


def leading_axis(operator: Operator) -> str | None:
    """The variadic axis that leads the first input and every output, and stands nowhere else: rows of a batch. None
    without one.
    """
    first = tokens(operator.inputs[0].shape)
    if not first or not first[0].startswith("*"):
        return None
    lead = first[0]
    for spec in (*operator.inputs, *operator.outputs):
        row = tokens(spec.shape)
        if lead in row and (row[0] != lead or lead in row[1:]):
            return None
        if spec in operator.outputs and lead not in row:
            return None
    return lead[1:]
