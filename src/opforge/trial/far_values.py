"""Values far from normal ones at the shape that was timed: a kernel may be right for them at every other shape."""

from __future__ import annotations

from dataclasses import replace
from random import SystemRandom

from opforge.runner import fresh_seed
from opforge.trial.setting import Setting
from opforge.verify import PreparedCase
from opforge.verify.cases.extreme_values import EXTREMES, withstands
from opforge.verify.cases.hidden import elements

FAR = ("large", "offset", "float16_range", "exponents")
"""Distributions whose values no normal number reaches: a softmax without its shift overflows in each of them."""
LARGE = 1 << 22
"""Elements of a tensor up to which they are asked for, as by `opforge verify` at a shape: the oracle takes a second."""


def far_values(setting: Setting) -> PreparedCase | None:
    """The memory of a workload with values that no normal number reaches, of a distribution drawn anew each time; None
    where the operator's bound is not meant for any, or the workload is large.
    """
    cases, prepared = setting.cases, setting.prepared
    operator, case, dtype = cases.operator, prepared.case, prepared.dtype
    if case.distribution != "normal" or elements(operator, case) > LARGE:
        return None
    scalars = operator.scalar_values(case.scalars)
    own = {
        item.distribution
        for item in operator.cases
        if item.dtype in (None, dtype) and operator.scalar_values(item.scalars) == scalars
    }
    kinds = [kind for kind in FAR if kind in EXTREMES or kind in own]
    SystemRandom().shuffle(kinds)
    for kind in kinds:
        far = cases.refill(prepared, replace(case, distribution=kind, seed=fresh_seed()))
        if withstands(operator, far.case, dtype, far.truth):
            return far
    return None
