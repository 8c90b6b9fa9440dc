"""Which functions a kernel has replaced inside its own process: clocks, comparisons, the worker's own code.

Code in the same process can lie to this. What cannot be lied to is in the parent.
"""

from __future__ import annotations

import builtins
import os
import statistics
import sys
import time

WATCHED = (
    (
        "time",
        ("perf_counter", "perf_counter_ns", "time", "time_ns", "monotonic", "monotonic_ns", "process_time", "sleep"),
    ),
    (
        "torch",
        (
            "allclose",
            "equal",
            "isclose",
            "isnan",
            "isfinite",
            "empty",
            "empty_like",
            "zeros",
            "frombuffer",
            "Event",
            "Stream",
        ),
    ),
    ("torch.testing", ("assert_close",)),
    ("torch.cuda", ("synchronize", "Event", "Stream", "CUDAGraph", "current_stream")),
    ("torch.accelerator", ("synchronize",)),
    ("torch.profiler", ("profile", "ProfilerActivity")),
    ("torch.utils.benchmark", ("Timer",)),
    ("opforge.runner.clocks", ("host_samples", "launch_samples", "spread_out", "_perf_counter")),
    (
        "opforge.runner.device_clocks",
        ("event_samples", "graph_samples", "cupti_samples", "captured", "busy", "union", "cache_flusher"),
    ),
    ("opforge.runner.sampling", ("sample", "work", "launch_cost", "about_clocks", "clocks", "device_clocks")),
    (
        "opforge.runner.executor",
        (
            "bind",
            "view",
            "synchronize",
            "sampling",
            "device_clocks",
            "Arena",
            "snapshot",
            "replaced",
            "traced",
            "answered",
            "question_of",
        ),
    ),
    ("opforge.runner.launch", ("check_returned", "synchronize", "backend", "bind", "_bind_allocating")),
    ("opforge.runner.worker", ("send", "receive", "work", "answered")),
    ("opforge.runner.protocol", ("answered", "question_of", "_said")),
    ("opforge.runner.channel", ("send", "receive", "_exactly")),
)
METHODS = (
    (
        "opforge.runner.executor",
        "Executor",
        ("handle", "run", "sample", "collect", "_collect", "bind", "overhead", "work", "replay", "terms"),
    ),
    ("opforge.runner.arena", "Arena", ("attach", "tensors", "bytes", "tensor")),
    ("torch", "Tensor", ("copy_", "data_ptr", "untyped_storage", "numel")),
    ("torch", "Event", ("record", "elapsed_time", "synchronize")),
    ("torch.cuda", "Event", ("record", "elapsed_time", "synchronize")),
    ("torch.cuda", "CUDAGraph", ("capture_begin", "capture_end", "replay")),
)


def snapshot() -> dict[str, object]:
    """The watched functions as they are, by name. Modules that nobody has imported are left out."""
    watched: dict[str, object] = {}
    modules = {**sys.modules}
    spec = getattr(modules.get("__main__"), "__spec__", None)
    if spec is not None:
        # a server started with `python -m` runs under this name
        modules.setdefault(spec.name, modules["__main__"])
    for name, attributes in WATCHED:
        if name in modules:
            watched |= {
                f"{name}.{attribute}": vars(modules[name]).get(attribute)
                for attribute in attributes
                if attribute in vars(modules[name])
            }
    for name, owner, methods in METHODS:
        cls = vars(modules[name]).get(owner) if name in modules else None
        if cls is not None:
            watched |= {
                f"{name}.{owner}.{attribute}": getattr(cls, attribute, None)
                if name == "torch"
                else vars(cls).get(attribute)
                for attribute in methods
            }
    watched |= {
        f"builtins.{name}": getattr(builtins, name)
        for name in ("sum", "len", "abs", "all", "any", "isinstance", "type", "open")
    }
    watched |= {
        "statistics.median": statistics.median,
        "os.write": os.write,
        "module time": sys.modules.get("time", time),
    }
    return watched


def replaced(before: dict[str, object]) -> list[str]:
    """What is another object than it was, by name. What was loaded since does not count."""
    now = snapshot()
    return [name for name, value in before.items() if value is not None and name in now and now[name] is not value]
