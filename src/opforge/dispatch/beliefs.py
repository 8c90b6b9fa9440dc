"""What dispatch knows of an operator on a device: beliefs from one's own records and from what the package brings, and
the model over their times. Of sibling devices, which run the same code, times alone are looked at: what was verified
there is not verified here.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opforge.core.definition.device import DeviceSpec
from opforge.core.definition.implementation import COMPARED_AS_IS, Implementation
from opforge.core.definition.operator import Operator, ScalarValue
from opforge.core.evidence.timing_terms import CALL, MAKES_ITS_RESULT, OUT
from opforge.core.language.errors import EnvironmentLacks, UsageError
from opforge.machine import descriptors
from opforge.roofline.family_model import FamilyModel
from opforge.roofline.time_model import Model, Place, TimedCall, place_of, tells
from opforge.runner.worker.manner import manner_as
from opforge.store import Beliefs, Evidence, Fact, Installation, Store, believed
from opforge.store.evidence_facts import Adopted
from opforge.store.evidence_query import facts_in_file
from opforge.store.files import default_location
from opforge.store.shipped import day_of, is_shipped, shipped, wanted

COLD_FIRST = ("cold", "warm")
"""Times with flushed caches are taken where there are any: a call seldom finds its inputs as the last one left them."""


@dataclass(frozen=True)
class OperatorBeliefs:
    """Beliefs of one operator on one device, and the device; and what is believed of its times on siblings of it."""

    operator: Operator
    device: DeviceSpec
    beliefs: Beliefs
    implementations: Sequence[Implementation]
    siblings: Sequence[tuple[DeviceSpec, Beliefs]] = ()

    def whose(self, implementation: str, dtype: str) -> str:
        """Whose evidence an implementation's newest Pass is, in words."""
        newest = next(
            (
                item
                for item in reversed(self.beliefs.evidence)
                if (item.implementation, item.dtype) == (implementation, dtype)
            ),
            None,
        )
        return self.origin(newest) if newest is not None else "not verified"

    def origin(self, item: Evidence) -> str:
        """Whose evidence it is, in words."""
        did = "verified" if item.median_s is None else "verified and timed"
        if not is_shipped(item.record):
            return f"{did} here on {day_of(item.created_at)}, record {item.record[:8]}"
        return f"{did} on an {title(self.device)} on {day_of(item.created_at)}; not on this machine"

    def model(
        self,
        dtype: str,
        scalars: Mapping[str, ScalarValue],
        family: Iterable[OperatorBeliefs] = (),
        brought: Callable[[], Iterable[OperatorBeliefs]] = tuple,
    ) -> Model:
        """The model over the times that tell of calls in this dtype with parameters of this kind.

        family    what is known of the operators of its family, for where nothing was timed of its own: what shares a
                  name there is built alike. Their times stand in for a sibling's
        brought   gives what the package alone says of them, for where own times are far (roofline.family_model)
        """
        timed = self.beliefs.timed()
        there = [item for _, beliefs in self.siblings for item in beliefs.timed()]
        cache = next((cache for cache in COLD_FIRST if any(item.cache == cache for item in timed or there)), "")
        siblings = [
            item
            for device, beliefs in self.siblings
            for item in self._timed_calls(beliefs.timed(), cache, dtype, scalars, device)
        ]
        seen = self._timed_calls(timed, cache, dtype, scalars, self.device)
        if not seen and not siblings:
            # those of PyTorch and other libraries are of other code
            names = {item.name for item in self.implementations if item.backend not in COMPARED_AS_IS}
            siblings = [
                item
                for other in family
                for item in self._of_family(other, dtype, scalars)
                if item.implementation in names
            ]

        def theirs() -> dict[str, list[TimedCall]]:
            return {other.operator.name: self._of_family(other, dtype, scalars) for other in brought()}

        return FamilyModel(self.operator, self.implementations, seen, siblings=siblings, family=theirs)

    def _of_family(self, other: OperatorBeliefs, dtype: str, scalars: Mapping[str, ScalarValue]) -> list[TimedCall]:
        """Times of another operator, with parameters of this kind as far as it has them."""
        timed = other.beliefs.timed()
        cache = next((cache for cache in COLD_FIRST if any(item.cache == cache for item in timed)), "")
        known = other.operator.scalar_values({})
        try:
            theirs = other.operator.scalar_values({name: value for name, value in scalars.items() if name in known})
        except UsageError:
            # a choice that it does not have is other work
            return []
        calls = other._timed_calls(timed, cache, dtype, theirs, self.device)
        return [replace(item, what=f"{other.operator.name} {item.what}") for item in calls]

    def _timed_calls(
        self,
        timed: Iterable[Evidence],
        cache: str,
        dtype: str,
        scalars: Mapping[str, ScalarValue],
        device: DeviceSpec,
    ) -> list[TimedCall]:
        """Those that tell of calls in this dtype with parameters of this kind, at their places on the device that they
        are of.
        """
        form, kind = self.operator.compute_dtype_of(dtype, scalars), self.operator.kind_of_call(scalars)
        fitting = [item for item in timed if set(item.axes) == set(self.operator.axes)]
        telling = [
            item
            for item in fitting
            if item.cache == cache and tells(self.operator, item.dtype, item.scalars, dtype, form)
        ]
        alike = [item for item in telling if self.operator.kind_of_call(item.scalars) == kind] or telling
        alike = on_one_terms(alike)
        places: dict[tuple[object, ...], Place] = {}
        seen = []
        for item in alike:
            key = (item.dtype, item.layout, tuple(item.axes.items()), tuple(item.scalars.items()))
            if key not in places:
                manner = manner_as(self.operator, item.axes, item.dtype, item.scalars, item.layout)
                places[key] = place_of(self.operator, item.axes, item.dtype, item.scalars, manner, device)
            whose = (
                self.origin(item)
                if device is self.device
                else f"timed on an {title(device)} on {day_of(item.created_at)}, which runs the same code"
            )
            what = f"{item.workload or 'its times'} ({whose})"
            call = TimedCall(item.implementation, item.config, places[key], item.ranked_s or 0.0, what, item.launch_s)
            seen.append(call)
        return [item for item in seen if item.seconds > 0]


def on_one_terms(timed: Iterable[Evidence]) -> list[Evidence]:
    """Of these times those that may be ranked beside one another: as a caller gets them, where half of the
    implementations that can be called on either terms were timed so; else those with `out=` given.

    Among the latter PyTorch's times as a caller gets them stay where it has no other. They are no less than what it
    would take with `out=` given, so it is taken where it is the faster for certain, and a time of ours never
    looks better than it is.
    """
    kept = list(timed)
    either = {item.implementation for item in kept if item.backend not in MAKES_ITS_RESULT}
    as_called = {item.implementation for item in kept if item.terms == CALL}
    if 2 * len(either & as_called) >= len(either):
        return [item for item in kept if item.terms == CALL]
    into = {item.implementation for item in kept if item.terms == OUT}
    return [
        item
        for item in kept
        if item.terms == OUT or (item.backend in MAKES_ITS_RESULT and item.implementation not in into)
    ]


def title(device: DeviceSpec) -> str:
    """A device as people call it.

    "nvidia-h200" is an NVIDIA H200.
    """
    maker, _, model = device.name.partition("-")
    return f"{maker.upper()} {model.replace('-', ' ').upper()}" if maker in ("nvidia", "amd") else device.name


def look(
    operator: Operator,
    device: DeviceSpec,
    here: Installation,
    implementations: Sequence[Implementation],
    store_url: str | None,
) -> OperatorBeliefs:
    """What is known of an operator here. On a CPU one's own records count alone: its kernels are compiled for the very
    processor, and how long they
    take is decided by cores, memory and quotas as much as by the model."""
    alike = [spec for spec in descriptors().values() if spec.is_sibling_of(device)]
    there = [replace(here, device=spec.name) for spec in alike]
    brings = device.kind != "cpu" and wanted()
    own, *of_siblings = [
        believed([*(shipped(operator.name, place.device) if brings else ()), *facts], place, adoptions)
        for place, (facts, adoptions) in zip([here, *there], _own(operator, [here, *there], store_url), strict=True)
    ]
    siblings = [pair for pair in zip(alike, of_siblings, strict=True) if pair[1].timed()]
    return OperatorBeliefs(operator, device, own, implementations, siblings)


def brought(operator: Operator, device: DeviceSpec, here: Installation) -> OperatorBeliefs:
    """What the package alone says of an operator whose times only tell of another's: neither a store nor its sources
    are looked at, because a first call waits for this. Nothing on a CPU.
    """
    facts = shipped(operator.name, device.name) if device.kind != "cpu" and wanted() else ()
    as_packed = {item.implementation: item.source_sha256 for item in facts}
    return OperatorBeliefs(operator, device, believed(facts, replace(here, sources=as_packed)), ())


def _own(
    operator: Operator, places: Sequence[Installation], store_url: str | None
) -> list[tuple[list[Fact], list[Adopted]]]:
    """One's own records of an operator in each place. None, with a warning, where the user's own folder takes no store:
    a model must run under a read-only home directory. A store that was named and is not to be had is an error.
    """
    where = store_url or default_location()
    try:
        found = None if "://" in where or where == ":memory:" else facts_in_file(Path(where), operator.name, places)
        if found is not None:
            return found
        with Store.open(where) as store:
            return [store.facts(operator.name, place) for place in places]
    except EnvironmentLacks as error:
        if store_url is not None or os.environ.get("OPFORGE_STORE"):
            raise
        warnings.warn(f"opforge looks at no records of yours: {error}", stacklevel=2)
        return [([], []) for _ in places]
