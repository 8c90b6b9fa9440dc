"""What a worker sees of the kernel inside its own process: functions that were replaced, tensor operations that were
called. Code in the same process can lie to this; what cannot be lied to is in the parent."""

from __future__ import annotations

import builtins
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

WATCHED = (
    ("time", ("perf_counter", "perf_counter_ns", "time", "time_ns", "monotonic", "monotonic_ns", "process_time", "sleep")),
    ("torch", ("allclose", "equal", "isclose", "isnan", "isfinite", "empty", "empty_like", "zeros", "frombuffer", "Event", "Stream")),
    ("torch.testing", ("assert_close",)),
    ("torch.cuda", ("synchronize", "Event", "Stream", "CUDAGraph", "current_stream")),
    ("torch.accelerator", ("synchronize",)),
    ("torch.profiler", ("profile", "ProfilerActivity")),
    ("torch.utils.benchmark", ("Timer",)),
    ("opforge.runner.clocks", ("host_samples", "launch_samples", "spread_out", "_perf_counter")),
    ("opforge.runner.device_clocks", ("event_samples", "graph_samples", "cupti_samples", "captured", "busy", "union", "cache_flusher")),
    ("opforge.runner.sampling", ("sample", "work", "launch_cost", "about_clocks", "clocks", "device_clocks")),
    ("opforge.runner.executor", ("bind", "view", "synchronize", "sampling", "device_clocks", "Arena", "snapshot", "replaced", "traced")),
    ("opforge.runner.launch", ("check_returned", "synchronize", "backend", "bind", "_bind_allocating")),
    ("opforge.runner.server", ("send", "receive", "work")),
    ("opforge.runner.channel", ("send", "receive", "_exactly")),
)
METHODS = (
    ("opforge.runner.executor", "Executor", ("handle", "run", "sample", "collect", "bind", "overhead", "work", "replay")),
    ("opforge.runner.arena", "Arena", ("attach", "tensors", "bytes", "tensor")),
    ("torch", "Tensor", ("copy_", "data_ptr", "untyped_storage", "numel")),
    ("torch", "Event", ("record", "elapsed_time", "synchronize")),
    ("torch.cuda", "Event", ("record", "elapsed_time", "synchronize")),
    ("torch.cuda", "CUDAGraph", ("capture_begin", "capture_end", "replay")),
)


def snapshot() -> dict[str, object]:
    """The watched functions as they are, by name. Modules that nobody has imported are left out."""
    found: dict[str, object] = {}
    modules = {**sys.modules}
    spec = getattr(modules.get("__main__"), "__spec__", None)
    if spec is not None:
        # a server started with `python -m` runs under this name
        modules.setdefault(spec.name, modules["__main__"])
    for name, attributes in WATCHED:
        if name in modules:
            found |= {f"{name}.{attribute}": vars(modules[name]).get(attribute) for attribute in attributes if attribute in vars(modules[name])}
    for name, owner, methods in METHODS:
        cls = vars(modules[name]).get(owner) if name in modules else None
        if cls is not None:
            found |= {f"{name}.{owner}.{attribute}": getattr(cls, attribute, None) if name == "torch" else vars(cls).get(attribute) for attribute in methods}
    found |= {f"builtins.{name}": getattr(builtins, name) for name in ("sum", "len", "abs", "all", "any", "isinstance", "type", "open")}
    found |= {"statistics.median": statistics.median, "os.write": os.write, "module time": sys.modules.get("time", time)}
    return found


def replaced(before: dict[str, object]) -> list[str]:
    """What is another object than it was, by name. What was loaded since does not count."""
    now = snapshot()
    return [name for name, value in before.items() if value is not None and name in now and now[name] is not value]


LAUNCHERS = (("triton.runtime.jit", "JITFunction"), ("triton.runtime.interpreter", "InterpretedFunction"))
LAUNCHES = "triton.launch"


def traced(run: Callable[[], Any]) -> dict[str, int]:
    """Call `run` and count the tensor operations that went through PyTorch's dispatcher, by name, and under LAUNCHES the
    Triton kernels that were launched."""
    mode_class = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
    counts: dict[str, int] = {}

    def count(name: str) -> None:
        counts[name] = counts.get(name, 0) + 1

    class Count(mode_class):  # type: ignore[misc,valid-type]
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            # asked by torch: with True, the first operation in every worker imports all of torch.compile, which takes seconds
            return False

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            count(str(function))
            return function(*args, **(kwargs or {}))

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def launch(*args: Any, **kwargs: Any) -> Any:
            count(LAUNCHES)
            return original(*args, **kwargs)

        return launch

    classes = [getattr(sys.modules[module], name) for module, name in LAUNCHERS if module in sys.modules]
    originals = [(cls, vars(cls)["run"]) for cls in classes if "run" in vars(cls)]
    for cls, original in originals:
        cls.run = counted(original)
    try:
        with Count():
            run()
    finally:
        for cls, original in originals:
            cls.run = original
    return counts
