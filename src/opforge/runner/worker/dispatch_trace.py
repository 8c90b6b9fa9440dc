"""Which tensor operations and Triton launches one call of a kernel makes, seen inside its own process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from opforge.runner.worker.data_flow import DataFlow
from opforge.runner.worker.interpreted_stores import stores
from opforge.runner.worker.write_ledger import Ledger, foreign_names, tensors_of

LAUNCHERS = (("triton.runtime.jit", "JITFunction"), ("triton.runtime.interpreter", "InterpretedFunction"))
LAUNCHES = "triton.launch"


def traced(
    run: Callable[[], Any],
    ledger: Ledger | None = None,
    launched: set[str] | None = None,
    results: Callable[[], Mapping[str, Any]] = dict,
) -> dict[str, int]:
    """Call `run` and count the tensor operations that went through PyTorch's dispatcher, by name, and under LAUNCHES
    the Triton kernels that were launched. `ledger` is told of both, where an interpreter runs them; names of Triton
    kernels are added to `launched`. Operations are renamed of which no launch and none of the `results` has anything
    (data_flow.LOOKED).
    """
    dispatch = importlib.import_module("torch.utils._python_dispatch")
    mode_class = dispatch.TorchDispatchMode
    counts: dict[str, int] = {}
    flow = ledger.flow if ledger is not None else DataFlow()

    def count(name: str) -> None:
        counts[name] = counts.get(name, 0) + 1

    class Count(mode_class):  # type: ignore[misc,valid-type]
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            # asked by torch: with True, the first operation in every worker imports all of torch.compile, which takes
            # seconds
            return False

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            count(str(function))
            result = function(*args, **(kwargs or {}))
            flow.operation(str(function), function, args, kwargs or {}, result)
            if ledger is not None and ledger.inside:
                flow.used.add(str(function))
            if ledger is not None:
                # a mode is off while it handles an operation: what the ledger does is not counted
                for tensor in (*args, *(result if isinstance(result, tuple | list) else (result,))):
                    ledger.wrote(tensor)
            return result

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def launch(*args: Any, **kwargs: Any) -> Any:
            count(LAUNCHES)
            with dispatch._disable_current_modes():
                flow.launch([*tensors_of(args, kwargs), *args, *kwargs.values()])
            if ledger is None or ledger.inside:
                compiled = original(*args, **kwargs)
                if launched is not None:
                    launched.add(getattr(compiled, "name", args[0].fn.__name__))
                return compiled
            given = tensors_of(args, kwargs)
            with dispatch._disable_current_modes():
                ledger.check(given, "before a launch")
                for name in foreign_names(args[0].fn):
                    ledger._found(f"its kernel {args[0].fn.__name__} calls {name}, which no device can run")
            ledger.inside = True
            with stores() as stored:
                try:
                    return original(*args, **kwargs)
                finally:
                    ledger.inside = False
                    with dispatch._disable_current_modes():
                        ledger.ran(given, stored)

        return launch

    classes = [getattr(sys.modules[module], name) for module, name in LAUNCHERS if module in sys.modules]
    originals = [(cls, vars(cls)["run"]) for cls in classes if "run" in vars(cls)]
    for cls, original in originals:
        cls.run = counted(original)
    try:
        with Count():
            run()
        flow.received(results().values())
    finally:
        for cls, original in originals:
            cls.run = original
    return flow.counted(counts)
