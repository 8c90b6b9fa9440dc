"""The gate: histories with their steps, baselines that were promoted, and a check that says fine, regression or
unsure.
"""

from opforge.gate.baseline import (
    Baseline as Baseline,
    baseline_names as baseline_names,
    baseline_path as baseline_path,
    find_baseline as find_baseline,
    key_of as key_of,
    load_baseline as load_baseline,
    save_baseline as save_baseline,
    select_records as select_records,
    tightened as tightened,
)
from opforge.gate.change_points import segments as segments
from opforge.gate.check import (
    CaseResult as CaseResult,
    Policy as Policy,
    Report as Report,
    Sight as Sight,
    check as check,
    settled_for as settled_for,
)
from opforge.gate.ci_output import junit as junit, markdown as markdown
from opforge.gate.history import Series as Series, SeriesKey as SeriesKey, history as history, series_of as series_of
