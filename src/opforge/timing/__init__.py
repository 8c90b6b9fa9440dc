"""Timing: how long verified implementations take, every sample kept, sides to be compared taking turns."""

# the nouns
from opforge.timing.compare import Rule as Rule
from opforge.timing.conditions import Probe as Probe

# the verbs
from opforge.timing.compare import compare as compare, corrected as corrected, geometric_mean as geometric_mean, holm as holm, sentence as sentence
from opforge.timing.duel import duel as duel
from opforge.timing.measure import Contestant as Contestant, MeasurementFailed as MeasurementFailed, Plan as Plan, measure as measure
