"""Which implementation a call takes, and the call itself: operators as ordinary PyTorch functions."""

from opforge.dispatch.choose import Choice as Choice, Chooser as Chooser
from opforge.dispatch.function import FIRST_TIMES as FIRST_TIMES, Function as Function, function_of as function_of
