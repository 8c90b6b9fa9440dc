"""Verification: an implementation against the float64 oracle, with a verdict that carries its evidence."""

from opforge.verdicts.compare import Comparison as Comparison, compare as compare
from opforge.verdicts.judge import bind_blind as bind_blind, judge as judge, run_bound as run_bound, run_once as run_once
from opforge.verdicts.oracle import Expectation as Expectation, Truth as Truth, consult as consult
from opforge.verdicts.prepared import Bench as Bench, Prepared as Prepared
from opforge.verdicts.suite import BRIEF as BRIEF, DEFAULT as DEFAULT, EXACT as EXACT, QUICK as QUICK, Effort as Effort
from opforge.verdicts.verify import verify as verify
