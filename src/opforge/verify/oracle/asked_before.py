"""A bound must not depend on who asks, or when: what was asked before is asked again, at a time that is drawn.

Adequacy and judging consult one oracle. Some of its small questions are kept, whoever asked, and asked again between
the questions of others: a definition that counts its calls, looks at a clock or draws numbers gives another bound.
Looking at the call stack is refused besides (core.language.blind).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opforge.core.definition.operator import Case, Operator
from opforge.core.definition.own_words import in_case
from opforge.core.language.errors import UsageError

SMALL = 1 << 12
"""Elements of all inputs: such a question takes about a millisecond."""
KEPT = 6
"""Questions that are kept of an operator; later ones take the place of one that is drawn."""
ONE_IN = 4
"""So many small questions ask one again."""
FACTOR, TOTAL = 2.1, 1.05
"""How far bounds may differ: sums that are added up in another order move a result over the border of a binade, where
half of its last place doubles; all together hardly change.
"""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A question and the bounds that answered it, by output."""

    operator: Operator
    case: Case
    dtype: str
    inputs: Mapping[str, Any]
    bounds: Mapping[str, Any]


_asks: dict[tuple[str, str], list[Ask]] = {}


def kept(operator: Operator, case: Case, dtype: str, inputs: Mapping[str, Any], expectations: Sequence[Any]) -> bool:
    """Whether the question was small; it may be kept."""
    tensors = [part for value in inputs.values() for part in (value if isinstance(value, list | tuple) else (value,))]
    if sum(getattr(tensor, "numel", lambda: SMALL)() for tensor in tensors) > SMALL:
        return False
    asks = _asks.setdefault((operator.name, str(operator.folder)), [])
    if len(asks) < KEPT or not secrets.randbelow(KEPT):
        place = secrets.randbelow(KEPT) if len(asks) == KEPT else len(asks)
        bounds = {
            one.output: one.bound.clone() for one in expectations if one.exact is None and hasattr(one.bound, "clone")
        }
        held = {name: value.clone() if hasattr(value, "clone") else value for name, value in inputs.items()}
        asks[place:] = [Ask(operator=operator, case=case, dtype=dtype, inputs=held, bounds=bounds), *asks[place + 1 :]]
    return True


def due(operator: Operator) -> Ask | None:
    """A question to ask again now; mostly None."""
    asks = _asks.get((operator.name, str(operator.folder)), [])
    return secrets.choice(asks) if asks and not secrets.randbelow(ONE_IN) else None


def compare(ask: Ask, expectations: Sequence[Any]) -> None:
    """Raises UsageError where the bounds are others than they were."""
    for one in expectations:
        before = ask.bounds.get(one.output)
        if before is None or not before.numel():
            continue
        old, new = (bound.nan_to_num(posinf=1e300).clamp(1e-300, 1e300) for bound in (before, one.bound))
        total = float((new / old.max()).sum() / (old / old.max()).sum())
        if not (float((new / old).max()) <= FACTOR and float((old / new).max()) <= FACTOR) or not (
            1 / TOTAL <= total <= TOTAL
        ):
            raise UsageError(
                f"The bound of {ask.operator.name} depends on who asks, or when: asked again about the same inputs"
                f"{in_case(ask.case)}, it allows {total:.3g} times as much for {one.output} as before. Compute "
                "magnitude, rounded and errors from their arguments alone. Correct op.py."
            )
