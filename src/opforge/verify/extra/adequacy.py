"""The check is checked: outputs that are no answer must be refused by the bound alone, without the laws' help.

For every case and every workload shape (scaled down where it is huge) of an operator, each impostor is made from the
truth or the inputs and handed to the comparison. One that gets through shows that the operator's tolerance is too wide
for these values. Coarser arithmetic than declared (verify.extra.reduced_precision) is offered besides where its errors
count least: at the largest workload's lengths, which stay whole while everything else shrinks. An impostor that happens
to be right (each element within one ulp of the truth: "shuffled rows" of a single row, zeros for a zero result) is
excused, and counted as such.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from opforge.core.definition.call_form import formed
from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.operator import Case, Operator, Workload
from opforge.core.definition.shapes import AxisValue, axis_names
from opforge.core.language.errors import Inadequate as Inadequate
from opforge.runner import allocate, fill
from opforge.verify.cases.hidden import elements
from opforge.verify.extra.reduced_precision import IMPOSTORS as COARSE, Coarse, outputs_of
from opforge.verify.judging.elements import noise, right_elements
from opforge.verify.judging.pages import pages_kept
from opforge.verify.judging.threads import threads_for
from opforge.verify.oracle.expectation import UNDERFLOW, Expectation, Truth, consult, half_ulp

MOST_ELEMENTS = 1 << 16
"""Tensors of a workload are scaled down to this many elements; lengths of reductions stay as long as that allows."""

QUICK_ELEMENTS = 1 << 12

WHOLE_FLOPS = 1 << 27
"""Beyond so much work the axes that nothing is added up along are halved down to 2."""
LONG = 16
"""An axis is long that has this part of the longest one's length."""
FEW_OTHERS = 24
WHOLE_ELEMENTS = 1 << 19
"""How long an axis may be that nothing is added up along, where the others stay whole; shorter yet where those are so
long that so many elements are passed.
"""


@dataclass(frozen=True, kw_only=True)
class Impostor:
    """One wrong answer offered. `outcome` is "rejected", "excused" (it happens to be right) or "accepted"; `ratio` is
    how far it is out: the worst
    |error| / bound of any element, or the noise of all together if that is more (inf for what is not a number)."""

    name: str
    situation: str
    dtype: str
    outcome: str
    ratio: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Adequacy:
    """What became of all impostors of one operator."""

    operator: str
    impostors: tuple[Impostor, ...]

    def count(self, outcome: str) -> int:
        """How many had this outcome."""
        return sum(impostor.outcome == outcome for impostor in self.impostors)

    @property
    def score(self) -> float:
        """Rejected over those that had to be; 1.0 is adequate."""
        due = len(self.impostors) - self.count("excused")
        return self.count("rejected") / due if due else 1.0

    @property
    def accepted(self) -> tuple[Impostor, ...]:
        """Those that got through."""
        return tuple(impostor for impostor in self.impostors if impostor.outcome == "accepted")


def adequacy(operator: Operator, *, dtypes: Sequence[str] = (), most_elements: int = MOST_ELEMENTS) -> Adequacy:
    """Offer every impostor to the bound, for all cases and workload shapes in `dtypes` (default: all of the
    operator's). What `require` offers is among it: what a run was refused for is found again here.
    """
    impostors: list[Impostor] = []
    sizes = dict.fromkeys((most_elements, QUICK_ELEMENTS)) if most_elements > QUICK_ELEMENTS else (most_elements,)
    with threads_for(most_elements - 1), pages_kept():
        for dtype in dtypes or operator.dtypes:
            offered: list[tuple[str, Mapping[str, AxisValue]]] = []
            for case in (case for most in sizes for case in situations(operator, dtype, most)):
                if (case.name, case.axes) not in offered:
                    offered.append((case.name, case.axes))
                    impostors += _offered(operator, case, dtype)
            if most_elements == MOST_ELEMENTS:
                for case in whole_lengths(operator, dtype):
                    impostors += _offered(operator, case, dtype, coarse=True)
    return Adequacy(operator=operator.name, impostors=tuple(impostors))


def require(operator: Operator, *, dtypes: Sequence[str] = ()) -> None:
    """Raises Inadequate when an impostor gets through on small versions of the cases and workloads: quick enough to be
    asked
    before an operator is used."""
    result = adequacy(operator, dtypes=dtypes, most_elements=QUICK_ELEMENTS)
    if result.accepted:
        first = result.accepted[0]
        raise Inadequate(
            f"{operator.name}: its tolerance accepts {first.name!r} in {first.situation} ({first.dtype}) as a right "
            "answer, "
            f"and {len(result.accepted) - 1} more. Narrow the tolerance in op.py, and see all with: opforge verify "
            f"--adequacy {operator.name}"
        )


def situations(operator: Operator, dtype: str, most_elements: int) -> Iterator[Case]:
    """The operator's cases and workload shapes for a dtype, each with a tensor of at most `most_elements`. Seeds follow
    from the names, so that the same definition gets the same answer each time; what is judged here is the definition,
    not a kernel.
    """

    def seed(name: str) -> int:
        return int(sha256(f"{operator.name} {name} {dtype}".encode()).hexdigest()[:15], 16)

    for case in operator.cases:
        if case.dtype in (None, dtype):
            yield _scaled(
                operator, dataclasses.replace(case, layout="contiguous", seed=seed(case.name)), dtype, most_elements
            )
    for workload in operator.workloads:
        if not operator.takes(workload, dtype):
            continue
        case = Case(
            name=workload.name,
            axes=workload.axes,
            why=workload.source,
            scalars=workload.scalars,
            layout=workload.layout,
            seed=seed(workload.name),
        )
        yield _scaled(operator, case, dtype, most_elements)


def _scaled(operator: Operator, case: Case, dtype: str, most: int) -> Case:
    """The case with axes halved, the variadic ones and the shortest reductions first, until it fits and constraints
    still hold.
    """
    axes: dict[str, AxisValue] = dict(case.axes)
    scalars = operator.scalar_values(case.scalars)

    def fits(candidate: Mapping[str, AxisValue]) -> bool:
        trial = dataclasses.replace(case, axes=candidate)
        return elements(operator, trial) <= most and operator.cost(candidate, dtype).flops <= 256 * most

    while not fits(axes):
        options = []
        for name, value in axes.items():
            if name in operator.derived:
                continue
            smaller: AxisValue = (
                tuple(max(1, extent // 2) for extent in value) if isinstance(value, tuple) else value // 2
            )
            size = math.prod(value) if isinstance(value, tuple) else value
            candidate = operator.completed({**axes, name: smaller}, scalars)
            if smaller != value and size > 1 and operator.violated(candidate, dtype, scalars) is None:
                # batch axes shrink before anything is summed over fewer terms
                options.append((not isinstance(value, tuple), -size, name, candidate))
        if not options:
            return dataclasses.replace(case, axes=axes)
        axes = min(options, key=lambda option: option[:3])[3]
    return dataclasses.replace(case, axes=axes)


def whole_lengths(operator: Operator, dtype: str) -> Iterator[Case]:
    """The workloads with the most to add up: along the axes of rows, or those that no output has, and, where an output
    lacks leading axes, along those. These lengths stay whole; all others shrink to what shows an error's size.
    """
    taken = [workload for workload in operator.workloads if operator.takes(workload, dtype)]
    last = {axis_names(spec.shape)[-1] for spec in operator.inputs[:1] if axis_names(spec.shape)}
    of_outputs = [set(axis_names(spec.shape)) for spec in operator.outputs]
    summed = [name for name in operator.free_axes if not any(name in names for names in of_outputs)]
    leading = [
        name
        for name in operator.free_axes
        if name not in summed and not all(name in names for names in of_outputs) and name not in last
    ]
    for kept in _kept_whole(operator, taken, summed or sorted(last), leading, any_summed=bool(summed)):
        # of as long ones the workload that leaves the most to do: a mask may hide what another adds up
        longest, axes = max(
            ((workload, _others_short(operator, workload, dtype, kept)) for workload in taken),
            key=lambda found: (
                math.prod(_size(found[0].axes[name]) for name in kept),
                operator.cost(found[1], dtype, operator.scalar_values(found[0].scalars)).flops,
            ),
        )
        name = f"{longest.name}, {' and '.join(kept)} whole"
        seed = int(sha256(f"{operator.name} {name} {dtype}".encode()).hexdigest()[:15], 16)
        yield Case(name=name, axes=axes, why=longest.source, scalars=longest.scalars, seed=seed)


def _kept_whole(
    operator: Operator, taken: Sequence[Workload], rows: list[str], leading: list[str], *, any_summed: bool
) -> Iterator[list[str]]:
    """The axes that stay whole together. Products whose outputs have all axes among them, such as gradients, are added
    up along several: each of those that are long stays whole by itself.
    """
    if not taken:
        return
    if operator.unit == "matrix" and not any_summed:
        most = {name: max(_size(workload.axes[name]) for workload in taken) for name in leading}
        yield from ([name] for name in leading if LONG * most[name] >= max(most.values()))
        return
    yield from (kept for kept in (rows, leading) if kept)


def _others_short(operator: Operator, workload: Workload, dtype: str, kept: Sequence[str]) -> Mapping[str, AxisValue]:
    """The axes of a workload, all but `kept` halved until they are short, and shorter yet while all is much work."""
    scalars, axes = operator.scalar_values(workload.scalars), dict(workload.axes)
    others = max(2, min(FEW_OTHERS, WHOLE_ELEMENTS // max(1, math.prod(_size(axes[name]) for name in kept))))

    def halve(name: str) -> bool:
        nonlocal axes
        value = axes[name]
        smaller: AxisValue = tuple(max(1, extent // 2) for extent in value) if isinstance(value, tuple) else value // 2
        candidate = operator.completed({**axes, name: smaller}, scalars)
        if operator.violated(candidate, dtype, scalars) is not None:
            return False
        axes = dict(candidate)
        return True

    shortened = [name for name in operator.free_axes if name not in kept]
    for name in shortened:
        while _size(axes[name]) > others and halve(name):
            pass
    for name in sorted(shortened, key=lambda name: -_size(axes[name])):
        while _size(axes[name]) > 2 and operator.cost(axes, dtype, scalars).flops > WHOLE_FLOPS and halve(name):
            pass
    return axes


def _size(value: AxisValue) -> int:
    return math.prod(value) if isinstance(value, tuple) else value


def _offered(operator: Operator, case: Case, dtype: str, *, coarse: bool = False) -> list[Impostor]:
    import torch

    operator = formed(operator, {**case.axes, **case.scalars})
    arena = allocate(operator, case, dtype)
    try:
        assert case.seed is not None
        fill(arena, operator, case, case.seed)
        inputs = {name: tensor.clone() for name, tensor in arena.tensors("input").items()}
        truth = consult(operator, case, dtype, inputs)
        fill(arena, operator, case, case.seed ^ 1)
        other = consult(operator, case, dtype, arena.tensors("input"))
    finally:
        arena.close()
    given = _Given(operator=operator, case=case, dtype=dtype, inputs=inputs, truth=truth, other=other)
    offered = []
    for name, make in (_coarse_makers() if coarse else IMPOSTORS).items():
        made = make(given)
        if made is None:
            continue
        stored = [
            value.to(torch.float64).to(getattr(torch, expectation.dtype))
            for value, expectation in zip(made, truth.expectations, strict=True)
        ]
        outcome, ratio = _outcome(stored, truth.expectations)
        offered.append(Impostor(name=name, situation=case.name, dtype=dtype, outcome=outcome, ratio=ratio))
    return offered


def _coarse_makers() -> dict[str, Maker]:
    def maker(how: Coarse) -> Maker:
        return lambda given: (
            outputs_of(how, given.operator, given.case, given.dtype, given.inputs)
            if how.due(given.operator, given.case, given.dtype)
            else None
        )

    return {name: maker(how) for name, how in COARSE.items()}


def _outcome(outputs: Sequence[Any], expectations: Sequence[Expectation]) -> tuple[str, float]:
    pairs = list(zip(outputs, expectations, strict=True))
    ratio = max((_ratio(actual, expectation) for actual, expectation in pairs), default=0.0)
    if not all(
        bool(right_elements(actual, expectation).all()) and (noise(actual, expectation) or 0.0) <= 1
        for actual, expectation in pairs
    ):
        return "rejected", ratio
    # an ulp either way is what any correct implementation may return; two where results are subnormal and have hardly a
    # digit left
    narrow = [
        dataclasses.replace(
            e,
            bound=half_ulp(e.expected, e.dtype) * (2 + 2 * (e.expected.abs() < 2.0 ** DTYPES[e.dtype].min_exponent))
            + UNDERFLOW,
        )
        for _, e in pairs
    ]
    return "excused" if all(
        bool(right_elements(actual, e).all()) for (actual, _), e in zip(pairs, narrow, strict=True)
    ) else "accepted", ratio


def _ratio(actual: Any, expectation: Expectation) -> float:
    if not expectation.expected.numel():
        return 0.0
    share = ((actual.double() - expectation.expected).abs() / expectation.bound.clamp(min=1e-300)).nan_to_num(
        nan=math.inf
    )
    return max(float(share.max()), noise(actual, expectation) or 0.0)


@dataclass(frozen=True, kw_only=True)
class _Given:
    """What impostors are made from: the inputs, the truth about them, and the truth about other inputs."""

    operator: Operator
    case: Case
    dtype: str
    inputs: Mapping[str, Any]
    truth: Truth
    other: Truth


Maker = Callable[[_Given], "list[Any] | None"]


def _each(change: Callable[[Any], Any]) -> Maker:
    """An impostor that changes the true outputs, one by one."""

    def make(given: _Given) -> list[Any] | None:
        return [change(expectation.expected.clone()) for expectation in given.truth.expectations]

    return make


def _zeros(y: Any) -> Any:
    return y * 0 if not y.isnan().any() and not y.isinf().any() else y.new_zeros(y.shape)


def _constant(y: Any) -> Any:
    return y.flatten()[:1].expand(y.numel()).reshape(y.shape).clone() if y.numel() else y


def _mean(y: Any) -> Any:
    kept = y[y.isfinite()]
    return y.new_full(y.shape, float(kept.mean())) if kept.numel() else y


def _shifted(y: Any) -> Any:
    return y.flatten().roll(1).reshape(y.shape)


def _shuffled_rows(y: Any) -> Any:
    return y.flip(0) if y.ndim >= 2 else y.flatten().flip(0).reshape(y.shape)


def _last_row_first(y: Any) -> Any:
    if y.ndim and y.shape[0]:
        y[-1] = y[0].clone()
    return y


def _too_large(y: Any) -> Any:
    return y * 1.01


def _negated(y: Any) -> Any:
    return -y


def _tail(value: float) -> Callable[[Any], Any]:
    def change(y: Any) -> Any:
        if y.ndim and y.shape[-1]:
            y[..., -1] = value
        return y if y.ndim else y.new_full(y.shape, value)

    return change


def _first_input(given: _Given) -> list[Any] | None:
    first = given.truth.inputs[given.operator.inputs[0].name]
    wanted = [expectation.expected for expectation in given.truth.expectations]
    return (
        [first.reshape(expected.shape) for expected in wanted]
        if all(expected.numel() == first.numel() for expected in wanted)
        else None
    )


def _kept_answer(given: _Given) -> list[Any] | None:
    return [expectation.expected for expectation in given.other.expectations]


def _half_precision(given: _Given) -> list[Any] | None:
    """The reference in bfloat16 behind a float32 door; a dtype that is narrow itself has no such impostor."""
    import torch

    if DTYPES[given.dtype].significand <= DTYPES["float16"].significand:
        return None
    tensors = [given.inputs[spec.name] for spec in given.operator.inputs]
    narrow = [tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor for tensor in tensors]
    try:
        returned = given.operator.reference(*narrow, **given.operator.scalar_values(given.case.scalars))
    except (RuntimeError, NotImplementedError):
        # torch has no bfloat16 kernel for an operation of this reference
        return None
    return list(returned if isinstance(returned, tuple) else (returned,))


IMPOSTORS: dict[str, Maker] = {
    "zeros": _each(_zeros),
    "constant": _each(_constant),
    "mean": _each(_mean),
    "first input": _first_input,
    "shifted by one": _each(_shifted),
    "shuffled rows": _each(_shuffled_rows),
    "last row is the first": _each(_last_row_first),
    "one percent too large": _each(_too_large),
    "negated": _each(_negated),
    "tail unwritten (NaN)": _each(_tail(math.nan)),
    "tail of zeros": _each(_tail(0.0)),
    "answer to other inputs": _kept_answer,
    "all NaN": _each(lambda y: y * math.nan),
    "computed in bfloat16": _half_precision,
}
