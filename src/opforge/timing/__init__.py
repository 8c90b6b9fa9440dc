"""Timing: how long verified implementations take, every sample kept, sides to be compared taking turns."""

from opforge.timing.compare import (
    Rule as Rule,
    compare as compare,
    compare_recorded as compare_recorded,
    corrected as corrected,
    geometric_mean as geometric_mean,
    holm as holm,
    sentence as sentence,
)
from opforge.timing.conditions import Probe as Probe
from opforge.timing.duel import duel as duel
from opforge.timing.measure import Contestant as Contestant, MeasurementFailed as MeasurementFailed, Plan as Plan, measure as measure
