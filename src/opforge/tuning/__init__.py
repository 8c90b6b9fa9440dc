"""Tuning: which point of a declared space is the fastest right one, for a workload on this device; what was tried is on
record.
"""

from opforge.tuning.outcomes import Trial as Trial, Tuned as Tuned, TuneOptions as TuneOptions
from opforge.tuning.search import Search as Search, valid_points as valid_points
from opforge.tuning.strategies import NAMES as NAMES
from opforge.tuning.tune import compile_first as compile_first, tune as tune
