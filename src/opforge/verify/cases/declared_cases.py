"""Cases that follow from what an implementation says of itself, so that a statement takes nothing away from what it is
asked.

Each layout that it declares gets a case. Distributions, layouts and parameters that it met only at shapes which it
refuses are asked again at a shape that it takes. Rows get one case that is longer than all of the operator's cases and
workloads. Some cases of every implementation with a kernel of its own end where memory ends.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from opforge.core.definition.implementation import Accepted, Implementation
from opforge.core.definition.operator import Case, Operator, ScalarValue, Workload
from opforge.core.definition.shapes import AxisValue, tokens
from opforge.core.language.errors import UsageError
from opforge.verify.cases.hidden import LARGEST_AXIS, elements, leading_axis

FENCED = 3
FENCED_ELEMENTS = 1 << 13
AGAIN = 12
"""Refused situations that are asked again, at most."""
AGAIN_ELEMENTS = 1 << 18
LONGEST_ELEMENTS = 1 << 19
TRIES = 8
"""Lengths that are drawn until one is taken: some implementations take multiples of 8 alone."""
DECLARED = {"rows": ("sliced",), "strided": ("strided", "transposed")}
"""The layouts of inputs that show whether a declared one is read rightly."""
SIZES = tuple(sorted({size + past for power in range(17) for size in (1 << power,) for past in (0, 1)}))


def fenced(operator: Operator, own: Sequence[Case]) -> Iterator[Case]:
    """Some of the operator's plain cases with each tensor up to the end of a page: two small ones with a tail, and the
    largest that is cheap.
    """
    plain = [
        case
        for case in own
        if (case.distribution, case.layout) == ("normal", "contiguous")
        and 0 < elements(operator, case) <= FENCED_ELEMENTS
    ]
    ragged = sorted(
        (case for case in plain if elements(operator, case) > 1),
        key=lambda case: (elements(operator, case) % 8 == 0, elements(operator, case)),
    )
    chosen = dict.fromkeys(
        case.name for case in (*ragged[: FENCED - 1], *sorted(plain, key=lambda case: -elements(operator, case))[:1])
    )
    for case in plain:
        if case.name in chosen:
            yield dataclasses.replace(
                case, name=f"{case.name}_fenced", layout="fenced", why="each tensor ends where memory ends"
            )


def declared(operator: Operator, implementation: Implementation, checked: Sequence[Case], dtype: str) -> Iterator[Case]:
    """A case for each layout that the implementation declares, at a shape that it was right for when it was contiguous:
    what was kept of that call by its shape alone is wrong now. None where such a pair was checked.
    """
    plain = [case.axes for case in checked if case.layout == "contiguous" and elements(operator, case)]
    seen = {case.layout for case in checked if elements(operator, case) and case.axes in plain}
    wanted = [layout for name in implementation.layouts for layout in DECLARED.get(name, ()) if layout not in seen]
    for layout in wanted:
        for case in _taken(operator, implementation, dtype, checked):
            yield dataclasses.replace(
                case,
                name=f"{case.name}_declared_{layout}",
                layout=layout,
                seed=None,
                pattern=0,
                why=f"{implementation.name} declares that it reads it",
            )
            break


CROSSED_ELEMENTS = 1 << 13
CROSSED, CROSSED_EMULATED = 6, 2
"""Cases that cross options, at most: each has as many together as are taken, so that few hold most pairs."""
TOGETHER = 5
"""Options in one of them: of more, one hides what another does."""


def crossed(
    operator: Operator,
    implementation: Implementation,
    dtype: str,
    checked: Sequence[Case],
    draw: random.Random,
    count: int = CROSSED,
) -> Iterator[Case]:
    """Options that no checked case has together, as the operator's own cases have each, until every pair that the
    implementation takes stood in one, or `count` cases are made.
    """
    own = [case for case in operator.cases if case.dtype in (None, dtype) and elements(operator, case)]
    values = [operator.scalar_values(case.scalars) for case in own]
    plain = {name: Counter(each[name] for each in values).most_common(1)[0][0] for name in (values or [{}])[0]}

    def given(case: Case) -> set[str]:
        return {name for name, value in operator.scalar_values(case.scalars).items() if plain.get(name) != value}

    options: dict[str, list[ScalarValue]] = {}
    for name in sorted({name for case in own for name in given(case)}):
        options[name] = sorted({each[name] for each in values if each[name] != plain[name]}, key=repr)
    seen = {pair for case in checked for pair in itertools.combinations(sorted(given(case)), 2)}
    left = [pair for pair in itertools.combinations(sorted(options), 2) if pair not in seen]
    draw.shuffle(left)
    shapes = sorted(
        (case for case in own if case.distribution == "normal" and elements(operator, case) <= CROSSED_ELEMENTS),
        key=lambda case: abs(elements(operator, case) - CROSSED_ELEMENTS // 4),
    )
    made = 0
    while left and made < count:
        chosen = {name: draw.choice(options[name]) for name in left.pop()}
        base = _shape_for(operator, implementation, dtype, shapes, chosen)
        if base is None:
            continue
        # what is in a pair that is left comes first
        wanted = dict.fromkeys(name for pair in draw.sample(left, len(left)) for name in pair)
        for name in wanted:
            if len(chosen) < TOGETHER and name not in chosen:
                more = {**chosen, name: draw.choice(options[name])}
                wider = _shape_for(operator, implementation, dtype, [base], more)
                chosen, base = (more, wider) if wider is not None else (chosen, base)
        left = [pair for pair in left if not set(pair) <= set(chosen)]
        made += 1
        words = "_".join(f"{name}_{value}" for name, value in sorted(chosen.items()))
        yield dataclasses.replace(
            base, name=f"crossed_{words}", why="options that no case has together", seed=None, pattern=0
        )


def _shape_for(
    operator: Operator,
    implementation: Implementation,
    dtype: str,
    shapes: Sequence[Case],
    chosen: Mapping[str, ScalarValue],
) -> Case | None:
    """The first of these cases whose axes may have the options; with them."""
    for case in shapes:
        scalars = {**case.scalars, **chosen}
        try:
            axes = operator.completed(case.axes, operator.scalar_values(scalars))
        except (UsageError, ArithmeticError, IndexError, TypeError):
            continue
        trial = dataclasses.replace(case, axes=axes, scalars=scalars)
        if elements(operator, trial) and _accepts(operator, implementation, dtype, trial):
            return trial
    return None


RANDOM = "seed"
"""The parameter of an operator that draws."""
LONG_RANDOM = 280_000
"""Elements of its longest case: a mask whose counter has 18 bits begins again after 262,144."""

LONG_AXIS = 4400
"""Of one axis: 1,100 blocks of four words, beyond ten bits of an index."""
SHORT_AXES = 3


def long_random(
    operator: Operator, implementation: Implementation, dtype: str, checked: Sequence[Case]
) -> Iterator[Case]:
    """For an operator that draws: a case of more elements than a mask has that repeats itself."""
    if RANDOM not in operator.scalar_values({}):
        return
    drawn = [case for case in checked if case.scalars.get(RANDOM) is not None and elements(operator, case)]
    for case in sorted(drawn, key=lambda case: (case.distribution != "normal", -elements(operator, case))):
        for name in operator.free_axes:
            value = case.axes[name]
            size = math.prod(value) if isinstance(value, tuple) else value
            wanted = -(-LONG_RANDOM * size // elements(operator, case)) + 37
            try:
                axes = operator.completed(
                    {**case.axes, name: (wanted,) if isinstance(value, tuple) else wanted},
                    operator.scalar_values(case.scalars),
                )
            except (UsageError, ArithmeticError, IndexError, TypeError):
                continue
            trial = dataclasses.replace(
                case, name=f"long_random_{name}", axes=axes, why="a mask that repeats itself", layout="contiguous",
                distribution="normal", seed=None, pattern=0,
            )  # fmt: skip
            if LONG_RANDOM <= elements(operator, trial) <= 4 * LONG_RANDOM and _accepts(
                operator, implementation, dtype, trial
            ):
                yield trial
                return


def long_axes(
    operator: Operator, implementation: Implementation, dtype: str, checked: Sequence[Case]
) -> Iterator[Case]:
    """For an operator that draws: a case for each axis by itself, longer than the bits that a counter may have kept of
    its index; the other axes are short. Rows, keys or heads whose mask begins again are right in a case that is long in
    another axis.
    """
    drawn = [case for case in checked if case.scalars.get(RANDOM) is not None and elements(operator, case)]
    if RANDOM not in operator.scalar_values({}) or not drawn:
        return
    base = min(drawn, key=lambda case: (case.distribution != "normal", len(case.scalars), elements(operator, case)))
    for name in operator.free_axes:
        if isinstance(base.axes[name], tuple):
            continue
        for others in (SHORT_AXES, LONG_AXIS):
            short = {
                axis: min(size, others) if isinstance(size, int) and axis in operator.free_axes else size
                for axis, size in base.axes.items()
            }
            try:
                axes = operator.completed({**short, name: LONG_AXIS}, operator.scalar_values(base.scalars))
            except (UsageError, ArithmeticError, IndexError, TypeError):
                continue
            trial = dataclasses.replace(
                base, name=f"long_axis_{name}", axes=axes, why="a mask that repeats itself along an axis", seed=None,
                layout="contiguous", distribution="normal", pattern=0,
            )  # fmt: skip
            if elements(operator, trial) <= 4 * LONG_RANDOM and _accepts(operator, implementation, dtype, trial):
                yield trial
                break


def again(
    operator: Operator,
    implementation: Implementation,
    dtype: str,
    refused: Sequence[Case],
    checked: Sequence[Case],
    draw: random.Random,
) -> Iterator[Case]:
    """Each distribution, layout and set of parameters of the refused cases that no checked one has, at the refused
    shape made to fit.
    """
    seen = {_situation(case) for case in checked}
    count = 0
    for case in sorted(refused, key=lambda case: (case.layout != "contiguous", case.name)):
        if _situation(case) in seen or not elements(operator, case) or _accepts(operator, implementation, dtype, case):
            continue
        seen.add(_situation(case))
        axes = _fitted(operator, implementation, dtype, case, checked, draw)
        if axes is not None:
            count += 1
            sizes = "x".join(
                str(extent) for value in axes.values() for extent in (value if isinstance(value, tuple) else (value,))
            )
            why = f"refused as {case.name}: the same where it is taken"
            yield dataclasses.replace(case, name=f"{case.name}_again_{sizes}", axes=axes, why=why, seed=None, pattern=0)
        if count >= AGAIN:
            return


def longest(operator: Operator, implementation: Implementation, dtype: str, draw: random.Random) -> Iterator[Case]:
    """One row longer than any of a case or workload, or as long as the implementation takes, and two of lengths
    between hidden cases and that; nothing where an operator has no rows.
    """
    lead, shape = leading_axis(operator), tokens(operator.inputs[0].shape)
    plain = [
        case
        for case in operator.cases
        if case.dtype in (None, dtype)
        and (case.distribution, case.layout) == ("normal", "contiguous")
        and elements(operator, case)
    ]
    if lead is None or len(shape) != 2 or shape[1] not in operator.free_axes or not plain:
        return
    cols = shape[1]
    base = min(plain, key=lambda case: elements(operator, case))
    calls: list[Case | Workload] = [*operator.cases, *operator.workloads]
    known = [item.axes[cols] for item in calls]
    most = max(size for size in known if isinstance(size, int))

    def at(size: int, why: str = "a row longer than any case or workload") -> Case:
        axes = operator.completed({**base.axes, lead: (1,), cols: size}, operator.scalar_values(base.scalars))
        return dataclasses.replace(base, name=f"longest_{size}", axes=axes, why=why, seed=None)

    def taken(case: Case) -> bool:
        return _accepts(operator, implementation, dtype, case) and elements(operator, case) <= LONGEST_ELEMENTS

    if most > 2 * LARGEST_AXIS:
        for half in range(2):
            lengths = (LARGEST_AXIS * (most / LARGEST_AXIS) ** ((half + draw.random()) / 2) for _ in range(TRIES))
            rows = (at(int(length), "a row between hidden cases and the longest") for length in lengths)
            yield from itertools.islice(filter(taken, rows), 1)
    wanted = at(most + draw.randrange(1, 4096))
    if taken(wanted):
        yield wanted
        return
    # the longest that is taken: statements bound rows from above
    least, most = 1, min(most, LONGEST_ELEMENTS)
    if not _accepts(operator, implementation, dtype, at(least)):
        return
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if _accepts(operator, implementation, dtype, at(middle)) else (least, middle)
    yield at(least)


def _situation(case: Case) -> tuple[object, ...]:
    return case.distribution, case.layout, tuple(sorted(case.scalars.items()))


def _accepts(operator: Operator, implementation: Implementation, dtype: str, case: Case) -> bool:
    scalars = operator.scalar_values(case.scalars)
    try:
        return operator.violated(case.axes, dtype, scalars) is None and isinstance(
            implementation.accepts(case.axes, dtype, scalars), Accepted
        )
    except (UsageError, ArithmeticError, IndexError, TypeError):
        # an expression without a value for these axes takes nothing
        return False


def _taken(operator: Operator, implementation: Implementation, dtype: str, checked: Sequence[Case]) -> Iterator[Case]:
    """Plain cases that were taken, those of several hundred elements first."""
    plain = [
        case for case in checked if case.distribution in ("normal", "uniform", "twins") and elements(operator, case) > 1
    ]
    yield from sorted(
        plain or [case for case in checked if elements(operator, case)],
        key=lambda case: abs(elements(operator, case) - 512),
    )


def _fitted(
    operator: Operator,
    implementation: Implementation,
    dtype: str,
    case: Case,
    checked: Sequence[Case],
    draw: random.Random,
) -> dict[str, AxisValue] | None:
    """Axes as near to the case's own as the implementation takes: one of them changed, then two, then those of a case
    that was taken.
    """
    scalars = operator.scalar_values(case.scalars)

    def fits(changed: dict[str, AxisValue]) -> dict[str, AxisValue] | None:
        try:
            axes = operator.completed({**case.axes, **changed}, scalars)
            trial = dataclasses.replace(case, axes=axes)
            small = (
                0 < elements(operator, trial) <= AGAIN_ELEMENTS
                and operator.cost(axes, dtype).flops <= 512 * AGAIN_ELEMENTS
            )
        except (UsageError, ArithmeticError, IndexError, TypeError):
            return None
        return axes if small and _accepts(operator, implementation, dtype, trial) else None

    plain = [name for name in operator.free_axes if not isinstance(case.axes[name], tuple)]
    calls: list[Case | Workload] = [*checked, *operator.workloads]
    options = {
        name: sorted({*SIZES, *(size for item in calls if isinstance(size := item.axes[name], int))}) for name in plain
    }
    single = [{name: size} for name in plain for size in options[name]]
    pairs = [
        {a: x, b: y}
        for i, a in enumerate(plain)
        for b in plain[i + 1 :]
        for x in options[a][::4]
        for y in options[b][::4]
    ]
    for tries in (single, pairs, [dict(item.axes) for item in checked]):
        taken = sorted(
            (axes for changed in tries if (axes := fits(dict(changed))) is not None),
            key=lambda axes: elements(operator, dataclasses.replace(case, axes=axes)),
        )
        if taken:
            # one of the smallest, and not always the same
            return draw.choice(taken[:3])
    return None
