"""Timing: how long verified implementations take, every sample kept; what is compared is timed interleaved."""

from opforge.timing.conditions import StateProbe as StateProbe
from opforge.timing.measure import (
    Candidate as Candidate,
    MeasurementFailed as MeasurementFailed,
    Plan as Plan,
    measure as measure,
)
from opforge.timing.paired_sampling import compare_while_sampling as compare_while_sampling
from opforge.timing.paired_statistics import (
    Rule as Rule,
    compare as compare,
    compare_recorded as compare_recorded,
    corrected as corrected,
    geometric_mean as geometric_mean,
    holm as holm,
    sentence as sentence,
)
