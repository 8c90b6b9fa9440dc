"""Chooses an implementation for a call: only one that has a Pass here, of the very source that is there now.

The order: a choice recorded beside the kernel (`tuned/<device>.json`) for the source that is there now, then the fastest in the records for the nearest
shape class, then the operator's declared order. PyTorch eager is the fallback, whatever else is true.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opforge.backends import Native, Way, backend
from opforge.backends.shared_code import source_sha256
from opforge.core.implementation import COMPARED_WITH, Config, Implementation, Rejected
from opforge.core.operator import Operator, ScalarValue
from opforge.core.record import Record
from opforge.core.shapes import Axes
from opforge.core.verdict import Pass
from opforge.machine import detect
from opforge.registry import Registry
from opforge.store import Store

NEWEST = 5000
"""Records of one operator that are looked through, the newest: a first call must not wait for years of history."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The implementation taken, its config, why, and why each one before it was passed over."""

    implementation: Implementation
    config: Config
    why: str
    passed_over: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"{self.implementation.operator} → {self.implementation.name}: {self.why}"


def shape_class(axes: Axes) -> tuple[tuple[str, int], ...]:
    """The class that tuned choices are kept by: each axis by the power of two that covers it.

    >>> shape_class({"lead": (4, 8), "cols": 1000})
    (('cols', 10), ('lead', 5))
    """
    sizes = {name: math.prod(value) if isinstance(value, tuple) else value for name, value in axes.items()}
    return tuple(sorted((name, max(0, size - 1).bit_length()) for name, size in sizes.items()))


def distance(one: tuple[tuple[str, int], ...], other: tuple[tuple[str, int], ...]) -> int:
    """How many powers of two lie between two shape classes, added over the axes."""
    there = dict(other)
    return sum(abs(size - there.get(name, 0)) for name, size in one)


@dataclass
class Chooser:
    """Chooses for one registry and one store. What the store says is read once per operator; `refresh()` reads it again, as does a choice whose source
    has changed since.

    functions   the operators already made into functions with this chooser (dispatch.function_of)
    """

    registry: Registry
    store_url: str | None = None
    _known: dict[tuple[str, str], list[Record]] = field(default_factory=dict)
    _hashes: dict[tuple[str, str], str] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _ways: dict[tuple[str, str], Way] = field(default_factory=dict)
    functions: dict[str, Any] = field(default_factory=dict)

    def refresh(self) -> None:
        """Forget what was read, and the calls that were prepared by it."""
        self._known.clear()
        self._hashes.clear()
        self._ways.clear()
        for function in self.functions.values():
            function.forget()

    def records(self, operator: str, device: str) -> list[Record]:
        """Passes on this very device of the sources that are there now, from the store."""
        key = (operator, device)
        if key not in self._known:
            hashes = {implementation.name: source_sha256(implementation.source) for implementation in self.registry.implementations(operator)}
            with Store.open(self.store_url) as store:
                found = store.query(operator=operator, device=self._name(device), limit=NEWEST)
            self._hashes.update(((operator, name), digest) for name, digest in hashes.items())
            self._known[key] = [record for record in found if isinstance(record.verdict, Pass) and record.source_sha256 == hashes.get(record.implementation)]
        return self._known[key]

    def _name(self, device: str) -> str:
        """The name of this machine's device, which is what it was when it was first asked for."""
        if device not in self._names:
            self._names[device] = detect(device).name
        return self._names[device]

    def choose(self, operator: Operator, axes: Axes, dtype: str, scalars: Mapping[str, ScalarValue], device: str, layouts: Sequence[str]) -> Choice:
        """The Choice for a call. `layouts` are those of the collapsed inputs (see runner.layout_of)."""
        choice = self._choose(operator, axes, dtype, scalars, device, layouts)
        chosen = choice.implementation
        if self._hashes.get((operator.name, chosen.name)) == source_sha256(chosen.source):
            return choice
        # written anew since the records were read: it would be compiled as it is now, and its Pass is of what it was
        self.refresh()
        return self._choose(operator, axes, dtype, scalars, device, layouts)

    def _choose(self, operator: Operator, axes: Axes, dtype: str, scalars: Mapping[str, ScalarValue], device: str, layouts: Sequence[str]) -> Choice:
        implementations = self.registry.implementations(operator.name)
        fallback = next(item for item in implementations if item.backend == "torch")
        proven = {(record.implementation, record.dtype) for record in self.records(operator.name, device)}
        passed_over: list[tuple[str, str]] = []
        fit: dict[str, Implementation] = {}
        for item in implementations:
            if item.backend in COMPARED_WITH:
                continue
            reason = self._unfit(item, axes, dtype, scalars, device, layouts, proven)
            if reason is None:
                fit[item.name] = item
            else:
                passed_over.append((item.name, reason))
        form = operator.format_of_factors(dtype, scalars)
        kind = operator.kind_of_call(scalars)
        try:
            tuned = self._tuned(operator, axes, form, kind, device)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # a call that worked yesterday must not fail for a file that only says how to be faster
            tuned = None
            passed_over.append((f"tuned/{self._name(device)}.json", f"it is damaged ({type(error).__name__}: {error}); remove it and renew it with: opforge tune {operator.name}"))
        if tuned is not None and tuned[0] in fit:
            found, where = fit[tuned[0]], f"tuned/{self._name(device)}.json"
            if tuned[2] == source_sha256(found.source):
                return Choice(implementation=found, config=tuned[1], why=f"chosen for this shape class in {where}", passed_over=tuple(passed_over))
            passed_over.append((f"{found.name} as in {where}", f"tuned with another version of its source; renew it with: opforge tune {operator.name}"))
        wanted = shape_class(axes)
        timed = [
            record
            for record in self.records(operator.name, device)
            if record.timing is not None and record.implementation in fit and record.dtype == dtype and operator.format_of_factors(dtype, record.scalars) == form
        ]
        timed = [record for record in timed if operator.kind_of_call(record.scalars) == kind] or timed
        if timed:
            nearest = min(distance(wanted, shape_class(record.axes)) for record in timed)
            near = [record for record in timed if distance(wanted, shape_class(record.axes)) == nearest]
            newest = {(record.implementation, record.config, record.workload): record for record in near}
            best = min(newest.values(), key=lambda record: record.timing.median_s if record.timing else math.inf)
            why = f"fastest in the records on {best.device} for {best.workload or 'this shape class'} (record {best.id[:8]})"
            return Choice(implementation=fit[best.implementation], config=best.config, why=why, passed_over=tuple(passed_over))
        if fit:
            first = next(iter(fit.values()))
            return Choice(implementation=first, config=first.default, why="the first in the operator's order that has a Pass here", passed_over=tuple(passed_over))
        why = f"nothing else is verified for this call on this machine; verify with: opforge verify {operator.name}"
        return Choice(implementation=fallback, config=fallback.default, why=why, passed_over=tuple(passed_over))

    def _unfit(
        self, item: Implementation, axes: Axes, dtype: str, scalars: Mapping[str, ScalarValue], device: str, layouts: Sequence[str], proven: set[tuple[str, str]]
    ) -> str | None:
        if (item.name, dtype) not in proven:
            return f"no Pass in the records for {dtype} on this machine, of the source as it is now"
        way = self._ways.get((item.backend, device)) or self._ways.setdefault((item.backend, device), backend(item.backend).way(device))
        if not isinstance(way, Native):
            return str(way)
        answer = item.accepts(axes, dtype, scalars)
        if isinstance(answer, Rejected):
            return answer.reason
        if item.backend != "torch":
            strange = [layout for layout in layouts if layout != "contiguous" and layout not in item.layouts]
            if strange:
                return f"an input is {strange[0]}; it takes {', '.join(item.layouts)}"
        return None

    def _tuned(self, operator: Operator, axes: Axes, dtype: str, kind: Mapping[str, ScalarValue], device: str) -> tuple[str, Config, str] | None:
        """Implementation, config and the source's hash of the entry of `tuned/<device>.json` for this shape class and kind of call."""
        assert operator.folder is not None
        path = operator.folder / "tuned" / f"{self._name(device)}.json"
        if not path.is_file():
            return None
        wanted = shape_class(axes)
        choices: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["choices"]
        same = (choice for choice in choices if choice["dtype"] == dtype and choice.get("kind", {}) == kind)
        chosen = next((choice for choice in same if tuple(sorted(choice["shape_class"].items())) == wanted), None)
        return None if chosen is None else (chosen["implementation"], Config(tuple(chosen["config"].items())), chosen.get("source_sha256", ""))
