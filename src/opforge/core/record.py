"""Record: one immutable fact, with the environment it was found in, and its JSON form."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opforge.core import device, implementation, operator, timing, verdict
from opforge.core.errors import UsageError
from opforge.core.implementation import Config
from opforge.core.operator import Cost, ScalarValue
from opforge.core.shapes import AxisValue
from opforge.core.timing import Timing
from opforge.core.verdict import Verdict

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Where a fact was found. `facts` holds device, driver, versions, clocks and commits by name.

    Facts that start with clock., load., git. or host. change from run to run (host. because a container gets a new name
    at each start), so they are kept and are no part of the fingerprint.
    """

    device: str
    host: str
    facts: Mapping[str, str]

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that change when anything that could change a result does; times and clocks left out."""
        stable = {name: value for name, value in self.facts.items() if not name.startswith(("clock.", "load.", "git.", "host."))}
        return hashlib.sha256(json.dumps([self.device, stable], sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class Record:
    """One fact: this implementation of this operator, on this workload, got this verdict and, if it passed, this timing.

    roof_s   the least time the device's measured ceilings allow for `cost`; `limiter` says which ceiling it is
    """

    id: str
    created_at: str
    operator: str
    implementation: str
    backend: str
    source_sha256: str
    workload: str
    axes: Mapping[str, AxisValue]
    scalars: Mapping[str, ScalarValue]
    dtype: str
    device: str
    config: Config
    cost: Cost
    verdict: Verdict
    timing: Timing | None
    roof_s: float | None
    limiter: str | None
    environment: Environment
    run: str


@functools.cache
def _classes() -> dict[str, type]:
    found: dict[str, type] = {}
    for module in (operator, implementation, verdict, timing, device):
        for name, value in vars(module).items():
            if dataclasses.is_dataclass(value) and isinstance(value, type):
                found[name] = value
    return {**found, "Environment": Environment, "Record": Record}


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def to_json(value: Any) -> Any:
    """Plain JSON data for any noun: dataclasses carry their type's name, non-finite floats become {"float": "nan"}."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"float": repr(value)}
        case Mapping():
            return {str(key): to_json(item) for key, item in value.items()}
        case tuple() | list():
            return [to_json(item) for item in value]
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            body = {item.name: to_json(getattr(value, item.name)) for item in dataclasses.fields(value)}
            return {"type": type(value).__name__, **body}
    raise UsageError(f"{type(value).__name__} has no JSON form; records hold nouns, numbers, text and their collections.")


def from_json(data: Any) -> Any:
    """The noun that `to_json` wrote. Lists become tuples. Raises UsageError on an unknown type or a missing field."""
    match data:
        case {"float": str(text)} if len(data) == 1:
            return float(text)
        case {"type": str(name)}:
            rest: dict[str, Any] = {key: item for key, item in data.items() if key != "type"}
            cls = _classes().get(name)
            if cls is None:
                raise UsageError(f"This data holds a {name!r}, which this version of opforge does not know. Upgrade opforge to read it.")
            hints = _hints(cls)
            names = {item.name for item in dataclasses.fields(cls)}
            unknown_fields = set(rest) - names
            if unknown_fields:
                raise UsageError(f"{name} has unknown fields {sorted(unknown_fields)}; it was written by another version of opforge.")
            values = {key: from_json(item) for key, item in rest.items()}
            for key, value in values.items():
                if not _fits(value, hints[key]):
                    raise UsageError(f"{name}.{key} cannot be {value!r:.80}; expected {hints[key]}.")
            try:
                return cls(**values)
            except TypeError as error:
                raise UsageError(f"{name} is incomplete: {error}.") from error
        case dict():
            return {key: from_json(item) for key, item in data.items()}
        case list():
            return tuple(from_json(item) for item in data)
    return data


def _fits(value: Any, hint: Any) -> bool:
    """Whether `value` may stand where `hint` is asked for; deep enough to keep foreign data out."""
    origin = typing.get_origin(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if origin is tuple:
        arguments = typing.get_args(hint)
        if not isinstance(value, tuple):
            return False
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return all(_fits(item, arguments[0]) for item in value)
        return len(value) == len(arguments) and all(_fits(item, argument) for item, argument in zip(value, arguments, strict=True))
    if origin is Mapping:
        key_hint, item_hint = typing.get_args(hint)
        return isinstance(value, Mapping) and all(_fits(key, key_hint) and _fits(item, item_hint) for key, item in value.items())
    if origin is not None:
        return isinstance(value, origin)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is None or hint is type(None):
        return value is None
    return isinstance(value, hint)
