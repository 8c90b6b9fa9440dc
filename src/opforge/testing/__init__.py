"""For test suites: opforge's verification as pytest parameters, and a conformance kit for any custom operator.

from opforge.testing import parametrize

@parametrize("my_operator", home="operators")
def test_my_operator(situation):
    situation.check()
"""

from opforge.testing.conformance import Conformance as Conformance, conformance as conformance
from opforge.testing.pytest_parameters import (
    Situation as Situation,
    parametrize as parametrize,
    situations as situations,
)
