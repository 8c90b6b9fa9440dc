"""Verification: an implementation against the float64 oracle, with a verdict that carries its evidence."""

from opforge.verify.cases.case_cache import CaseCache as CaseCache, PreparedCase as PreparedCase
from opforge.verify.cases.hidden import (
    BRIEF as BRIEF,
    DEFAULT as DEFAULT,
    EXACT as EXACT,
    QUICK as QUICK,
    Effort as Effort,
)
from opforge.verify.cases.worker_pool import WorkerPool as WorkerPool
from opforge.verify.judging.elements import ElementErrors as ElementErrors, compare as compare
from opforge.verify.judging.run_case import (
    CaseRun as CaseRun,
    Ran as Ran,
    bind_blind as bind_blind,
    judge as judge,
    run_bound as run_bound,
    run_of as run_of,
    run_once as run_once,
)
from opforge.verify.oracle.expectation import Expectation as Expectation, Truth as Truth, consult as consult
from opforge.verify.verification import verify as verify
