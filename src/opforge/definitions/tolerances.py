"""Tolerances that operators of one kind share. Each says how its sums may be made; see core.operator.Tolerance for the
formula.
"""

from __future__ import annotations

from opforge.core.definition.operator import Tolerance

MOVED = Tolerance(factor=0.0, roundings=0.0, about="elements move and are not computed with: every result is exact")
ONE_ADDITION = Tolerance(factor=1.0, about="one float32 addition and one rounding")
