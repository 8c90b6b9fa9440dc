"""Which functions a kernel has replaced inside its own process: clocks, comparisons, the worker's own code.

Code in the same process can lie to this. What cannot be lied to is in the parent.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

OWN = "opforge.runner"
KINDS = (FunctionType, BuiltinFunctionType, type, ModuleType, int, float, str, bytes, tuple, frozenset)
MEMBERS = (FunctionType, property, staticmethod, classmethod)
_BUILTINS = frozenset(vars(builtins))
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
    ("builtins", ("sum", "len", "abs", "all", "any", "isinstance", "type", "open")),
    ("statistics", ("median",)),
    ("os", ("write",)),
    ("torch.testing", ("assert_close",)),
    ("torch.cuda", ("synchronize", "Event", "Stream", "CUDAGraph", "current_stream")),
    ("torch.accelerator", ("synchronize", "current_accelerator")),
    ("torch.autograd.profiler", ("profile", "_prepare_profiler", "_enable_profiler", "_disable_profiler")),
    ("torch.utils.benchmark", ("Timer",)),
)
METHODS = (
    ("torch", "Tensor", ("copy_", "data_ptr", "untyped_storage", "numel")),
    ("torch", "Event", ("record", "elapsed_time", "synchronize")),
    ("torch.cuda", "Event", ("record", "elapsed_time", "synchronize")),
    ("torch.autograd.profiler", "profile", ("__enter__", "__exit__")),
    ("torch.cuda", "CUDAGraph", ("capture_begin", "capture_end", "replay")),
)


@dataclass(frozen=True)
class Snapshot:
    """What is to stay what it is.

    held       entries of modules and classes: name, the dictionary that holds it, its key there, what it is
    methods    of classes of torch, which may inherit them: name, class, attribute, what it is
    codes      name, function, its code and defaults: with others it stays the same object
    builtins   modules of the runner, with how many of their names hide a builtin
    """

    held: tuple[tuple[str, Mapping[Any, Any], str, object], ...] = ()
    methods: tuple[tuple[str, type, str, object], ...] = ()
    codes: tuple[tuple[str, FunctionType, object, object], ...] = ()
    builtins: tuple[tuple[str, Mapping[str, Any], int], ...] = ()


def snapshot() -> Snapshot:
    """The watched functions as they are, and all that the runner's own modules hold: functions and methods with their
    code and defaults, classes, modules, constants. Modules that nobody has imported are left out.
    """
    modules = {**sys.modules}
    spec = getattr(modules.get("__main__"), "__spec__", None)
    if spec is not None:
        # a server started with `python -m` runs under this name
        modules.setdefault(spec.name, modules["__main__"])
    own = {name: vars(module) for name, module in sorted(modules.items()) if name.startswith(OWN)}
    held: list[tuple[str, Mapping[Any, Any], str, object]] = [("module time", sys.modules, "time", sys.modules["time"])]
    codes: dict[int, tuple[str, FunctionType, object, object]] = {}

    def hold(name: str, place: Mapping[str, Any], key: str) -> None:
        value = place[key]
        held.append((name, place, key, value))
        if isinstance(value, FunctionType) and value.__module__.startswith(OWN):
            codes[id(value)] = (name, value, value.__code__, value.__defaults__)

    for name, attributes in WATCHED:
        for attribute in attributes if name in modules else ():
            if attribute in vars(modules[name]):
                hold(f"{name}.{attribute}", vars(modules[name]), attribute)
    for name, place in own.items():
        for key in [key for key, value in place.items() if isinstance(value, KINDS) and not key.startswith("__")]:
            hold(f"{name}.{key}", place, key)
            if isinstance(place[key], type) and place[key].__module__ == name:
                members = vars(place[key])
                for member in [one for one, value in members.items() if isinstance(value, MEMBERS)]:
                    hold(f"{name}.{key}.{member}", members, member)
    classes = [
        (f"{name}.{owner}", vars(modules[name])[owner], methods)
        for name, owner, methods in METHODS
        if name in modules and owner in vars(modules[name])
    ]
    return Snapshot(
        held=tuple(held),
        methods=tuple(
            (f"{name}.{method}", cls, method, getattr(cls, method, None))
            for name, cls, methods in classes
            for method in methods
        ),
        codes=tuple(codes.values()),
        builtins=tuple((name, place, _hidden(place)) for name, place in own.items()),
    )


def _hidden(place: Mapping[str, Any]) -> int:
    return len(_BUILTINS & place.keys())


def replaced(before: Snapshot) -> list[str]:
    """What is another object than it was, or has other code, by name. What was loaded since does not count."""
    return [
        *(name for name, place, key, value in before.held if place.get(key) is not value),
        *(name for name, cls, method, value in before.methods if getattr(cls, method, None) is not value),
        *(
            f"the code of {name}"
            for name, function, code, defaults in before.codes
            if function.__code__ is not code or function.__defaults__ is not defaults
        ),
        *(f"a builtin in {name}" for name, place, count in before.builtins if _hidden(place) != count),
    ]
