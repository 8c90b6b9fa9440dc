"""Whole jobs, composed of the rooms below: verify, then time, then place under the roof, then record."""

from opforge.workbench.bench import (
    Event as Event,
    Options as Options,
    bench as bench,
    ensure_chosen as ensure_chosen,
    environment_of as environment_of,
    verify_all as verify_all,
    workloads_for as workloads_for,
)
from opforge.workbench.comparison import Outcome as Outcome, compare_sides as compare_sides, corrected_outcomes as corrected_outcomes
from opforge.workbench.sides import Side as Side, parse_side as parse_side
