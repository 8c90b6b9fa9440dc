"""Tuning: which point of a declared space is the fastest right one, for a workload on this device; what was tried is on record."""

from opforge.tuning.choices import Chosen as Chosen, choices_path as choices_path, keep as keep
from opforge.tuning.search import Search as Search, valid_points as valid_points
from opforge.tuning.trial import Options as Options, Trial as Trial, Tuned as Tuned
from opforge.tuning.tune import compile_first as compile_first, tune as tune
