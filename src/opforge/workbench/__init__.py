"""Whole jobs, composed of the rooms below: verify, then time, then place under the roofline, then record."""

from opforge.workbench.bench import (
    BenchOptions as BenchOptions,
    Event as Event,
    bench as bench,
    chosen as chosen,
    ensure_chosen as ensure_chosen,
    environment_of as environment_of,
    verify_all as verify_all,
    workloads_for as workloads_for,
)
from opforge.workbench.compare import (
    SidesCompared as SidesCompared,
    compare_sides as compare_sides,
    corrected_outcomes as corrected_outcomes,
)
from opforge.workbench.qualify import Step as Step, main_dtype as main_dtype, steps as steps
from opforge.workbench.sides import Side as Side, parse_side as parse_side
