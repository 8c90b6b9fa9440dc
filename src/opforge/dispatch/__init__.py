"""Which implementation a call takes, and the call itself: operators as ordinary PyTorch functions."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opforge.dispatch.choose import Choice as Choice, Chooser as Chooser
    from opforge.dispatch.function import (
        FIRST_TIMES as FIRST_TIMES,
        Function as Function,
        function_of as function_of,
    )
    from opforge.dispatch.named_call import call_named as call_named

# imported when they are first named: `import opforge.ops` registers schemas, which needs no store and no runner
_PLACES = (
    {"Choice": "choose", "Chooser": "choose"}
    | dict.fromkeys(("FIRST_TIMES", "Function", "function_of"), "function")
    | {"call_named": "named_call"}
)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'opforge.dispatch' has no attribute {name!r}")
    return getattr(importlib.import_module(f"opforge.dispatch.{_PLACES[name]}"), name)
