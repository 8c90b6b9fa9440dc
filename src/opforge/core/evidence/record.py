"""Record: one immutable fact, with the environment it was found in, and its JSON form."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from opforge.core.definition import device, implementation, operator
from opforge.core.definition.implementation import Config
from opforge.core.definition.operator import Cost, ScalarValue
from opforge.core.definition.shapes import AxisValue
from opforge.core.evidence import comparison, diagnosis, optimization, timing, verdict
from opforge.core.evidence.timing import Timing
from opforge.core.evidence.timing_terms import terms_or_then
from opforge.core.evidence.verdict import Verdict
from opforge.core.language.added_fields import ADDED, is_left_out
from opforge.core.language.errors import UsageError
from opforge.core.language.fields import checker, hints
from opforge.core.language.printed import Printed

SCHEMA = 1


MODE = "execution mode."
"""What a fact's name begins with that says how a backend's kernels are executed; in earlier records "way."."""


FOLDER = "host.folder"
"""The fact that names the folder of an operator that does not come with opforge."""


CONFIG = "timing.config"
"""The fact that a config was asked for which is not the default: such times have a history of their own, and are no
baseline.
"""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Where a fact was found. `facts` holds device, driver, versions, clocks and commits by name.

    Facts that start with clock., load., git. or host. change from run to run (host. because a container gets a new name
    at each start), so they are kept and are no part of the fingerprint. `execution_mode_of` reads how a backend's
    kernels were executed.
    """

    device: str
    host: str
    facts: Mapping[str, str]

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that change when anything that could change a result does; times and clocks left out."""
        # earlier records say "way.triton" for "execution mode.triton": one machine has one fingerprint
        stable = {
            f"way.{name.removeprefix(MODE)}" if name.startswith(MODE) else name: value
            for name, value in self.facts.items()
            if not name.startswith(("clock.", "load.", "git.", "host."))
        }
        return hashlib.sha256(json.dumps([self.device, stable], sort_keys=True).encode()).hexdigest()[:12]

    def execution_mode_of(self, backend: str) -> str:
        """How a backend's kernels were executed: "native: …", what emulated the device, or "missing: …"; "" where no
        fact says it.
        """
        return self.facts.get(f"{MODE}{backend}", self.facts.get(f"way.{backend}", ""))


@dataclass(frozen=True, kw_only=True)
class Record:
    """One fact: this implementation of this operator, on this workload, got this verdict and, if it passed, this
    timing.

    roof_s        the least time the device's measured ceilings allow for `cost`; `limiter` says which ceiling it is
    code_sha256   of what the source says to the compiler, without comments, layout and names (backends.program_hash):
                  equal ones compile to one code; "" in records from before it was kept
    trial         a point of a search, verified on a selection of cases and its time not audited; or a verification at
                  one shape alone. A Pass of it is nobody's evidence beyond that
    layout        how the inputs lay in memory, as the workload says it
    printed       what the implementation printed while it was verified; None where it printed nothing, where an earlier
                  verification was taken, and in records from before it was kept
    compile_s     seconds that its compiler took: of a C++ or CUDA library when it was made, of others what was seen of
                  compilers while it was verified, which is little where they found their cache; None where nothing was
                  compiled, and in records from before it was kept
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
    code_sha256: str = field(default="", metadata=ADDED)
    trial: bool = field(default=False, metadata=ADDED)
    layout: str = field(default="contiguous", metadata=ADDED)
    printed: Printed | None = field(default=None, metadata=ADDED)
    compile_s: float | None = field(default=None, metadata=ADDED)


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """One fact beside a record, which it leaves as it is: another source compiles to the code that the record speaks
    of.

    record          the id of the record
    source_sha256   the source that it speaks of as well (backends.shared_code.source_sha256)
    code_sha256     of the code that both compile to (inspect.compiled); "" where the sources are one program, and
                    nothing had to be compiled
    how             what was compared, in words
    """

    id: str
    created_at: str
    record: str
    operator: str
    source_sha256: str
    code_sha256: str
    how: str


def terms_of(record: Record) -> str:
    """The terms of the record's time (core.evidence.timing_terms); those of its day where it states none. "" without a
    time.
    """
    return terms_or_then(record.timing.terms, record.backend) if record.timing is not None else ""


@functools.cache
def _classes() -> dict[str, type]:
    classes: dict[str, type] = {}
    for module in (operator, implementation, verdict, timing, device, comparison, diagnosis, optimization):
        for name, value in vars(module).items():
            if dataclasses.is_dataclass(value) and isinstance(value, type):
                classes[name] = value
    # "Policy": as it was called in records from before 2026-11-23
    return {
        **classes,
        "Policy": verdict.LibraryFallback,
        "Environment": Environment,
        "Record": Record,
        "Printed": Printed,
        "Adoption": Adoption,
    }


@functools.cache
def _fields(cls: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cls)


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
            # samples, by the thousand
            if set(map(type, value)) == {float} and all(map(math.isfinite, value)):
                return list(value)
            return [to_json(item) for item in value]
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            pairs = ((item, getattr(value, item.name)) for item in _fields(type(value)))
            body = {item.name: to_json(held) for item, held in pairs if not is_left_out(item, held)}
            return {"type": type(value).__name__, **body}
    raise UsageError(
        f"{type(value).__name__} has no JSON form; records hold nouns, numbers, text and their collections."
    )


def from_json(data: Any) -> Any:
    """The noun that `to_json` wrote. Lists become tuples. Raises UsageError on an unknown type or a missing field."""
    match data:
        case {"float": str(text)} if len(data) == 1:
            return float(text)
        case {"type": str(name)}:
            rest: dict[str, Any] = {key: item for key, item in data.items() if key != "type"}
            cls = _classes().get(name)
            if cls is None:
                raise UsageError(
                    f"This data holds a {name!r}, which this version of opforge does not know. Upgrade opforge to "
                    "read it."
                )
            declared = hints(cls)
            names = {item.name for item in _fields(cls)}
            unknown_fields = set(rest) - names
            if unknown_fields:
                raise UsageError(
                    f"{name} has unknown fields {sorted(unknown_fields)}; it was written by another version of opforge."
                )
            values = {key: from_json(item) for key, item in rest.items()}
            for key, value in values.items():
                if not checker(declared[key])(value):
                    raise UsageError(f"{name}.{key} cannot be {value!r:.80}; expected {declared[key]}.")
            try:
                return cls(**values)
            except TypeError as error:
                raise UsageError(f"{name} is incomplete: {error}.") from error
        case dict():
            return {key: from_json(item) for key, item in data.items()}
        case list():
            return tuple(map(from_json, data)) if {dict, list} & set(map(type, data)) else tuple(data)
    return data
