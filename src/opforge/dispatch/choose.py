"""Chooses an implementation for a call: only one that has a Pass here, of the very source that is there now.

The order: a choice that `opforge tune` kept (`registry.tuned_choices`, the user's own first) for the source that is
there now and for inputs that lie like these, then what the model over the believed times expects to be fastest
(roofline.time_model), then the operator's declared order. PyTorch eager is the fallback, whatever else is true.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opforge.backends import ExecutionMode, Native, backend
from opforge.backends.program_hash import is_of
from opforge.backends.shared_code import source_sha256
from opforge.core.definition.device import DeviceSpec
from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.implementation import COMPARED_WITH, Config, Implementation, Rejected, fallback
from opforge.core.definition.operator import Operator, ScalarValue
from opforge.core.definition.shapes import Axes
from opforge.core.language.errors import UsageError
from opforge.dispatch.beliefs import OperatorBeliefs, brought, look
from opforge.dispatch.installation import installation_of, toolchain_of
from opforge.machine import detect
from opforge.registry import Registry
from opforge.registry.tuned_choices import choice_files, choice_for
from opforge.roofline.manners import Manner
from opforge.roofline.time_model import Model, Place, pick, place_of
from opforge.runner.worker.manner import manner_as
from opforge.store import Beliefs


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The implementation taken, its config, why, and why each one before it was passed over."""

    implementation: Implementation
    config: Config
    why: str
    passed_over: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"{self.implementation.operator} → {self.implementation.name}: {self.why}"


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """What a first choice reads is kept, and would be looked through a hundred times while it is made; where that sets
    off a collection of all that PyTorch has loaded, it takes a tenth of a second.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@dataclass
class Chooser:
    """Chooses for one registry and one store. What the store says is read once per operator; `refresh()` reads it
    again, as does a choice whose source has changed since.

    functions   the operators already made into functions with this chooser (dispatch.function_of)
    """

    registry: Registry
    store_url: str | None = None
    _known: dict[tuple[str, str], OperatorBeliefs] = field(default_factory=dict)
    _models: dict[tuple[Any, ...], Model] = field(default_factory=dict)
    _hashes: dict[tuple[str, str], str] = field(default_factory=dict)
    _specs: dict[str, DeviceSpec] = field(default_factory=dict)
    _modes: dict[tuple[str, str], ExecutionMode] = field(default_factory=dict)
    functions: dict[str, Any] = field(default_factory=dict)

    def refresh(self) -> None:
        """Forget what was read, and the calls that were prepared by it."""
        self._known.clear()
        self._models.clear()
        self._hashes.clear()
        self._modes.clear()
        for function in self.functions.values():
            function.forget()

    def known(self, operator: Operator, device: str) -> OperatorBeliefs:
        """What is known of an operator on this very device, for the sources that are there now (store.belief)."""
        key = (operator.name, device)
        if key not in self._known:
            implementations = self.registry.implementations(operator.name)
            spec = self._spec(device)
            here = installation_of(self.registry, operator.name, spec.name)
            self._known[key] = look(operator, spec, here, implementations, self.store_url)
            self._hashes.update(((operator.name, name), digest) for name, digest in here.sources.items())
        return self._known[key]

    def model(self, operator: Operator, dtype: str, scalars: Mapping[str, ScalarValue], device: str) -> Model:
        """The model over the times that tell of such calls, made once."""
        key = (
            operator.name,
            device,
            dtype,
            operator.compute_dtype_of(dtype, scalars),
            tuple(operator.kind_of_call(scalars).items()),
        )
        if key not in self._models:
            # the family is read where it is asked for alone, which is where nothing was timed of the operator itself
            family = (self.known(other, device) for other in self._family(operator))
            spec = self._spec(device)
            here = toolchain_of(spec.name)

            def of_package() -> Iterator[OperatorBeliefs]:
                return (brought(other, spec, here) for other in self._family(operator) if spec.kind != "cpu")

            self._models[key] = self.known(operator, device).model(dtype, scalars, family, of_package)
        return self._models[key]

    def _family(self, operator: Operator) -> Iterator[Operator]:
        """The other operators of its family that do the same kind of work."""
        family = self.registry.family(operator.name)
        names = [name for name in self.registry.names() if family and self.registry.family(name) == family]
        for name in names:
            # one that cannot be read is told of where it is asked for itself, and so are its cases and workloads:
            # looking at those of a family takes longer than all else that a choice does
            with contextlib.suppress(UsageError):
                if name != operator.name and (other := self.registry.unasked(name)).unit == operator.unit:
                    yield other

    def _spec(self, device: str) -> DeviceSpec:
        """This machine's device, as it was when it was first asked for."""
        if device not in self._specs:
            self._specs[device] = detect(device)
        return self._specs[device]

    def _name(self, device: str) -> str:
        return self._spec(device).name

    def choose(
        self,
        operator: Operator,
        axes: Axes,
        dtype: str,
        scalars: Mapping[str, ScalarValue],
        device: str,
        layouts: Sequence[str],
        manner: Manner | None = None,
    ) -> Choice:
        """The Choice for a call. `layouts` are those of the collapsed inputs (see runner.layout_of), `manner` says how
        they lie more closely; without it
        they are taken to be contiguous."""
        asked = manner if manner is not None else manner_as(operator, axes, dtype, scalars, "contiguous")
        with _no_collections():
            choice = self._choose(operator, axes, dtype, scalars, device, layouts, asked)
        chosen = choice.implementation
        if self._hashes.get((operator.name, chosen.name)) == source_sha256(chosen.source):
            return choice
        # written anew since the records were read: it would be compiled as it is now, and its Pass is of what it was
        self.refresh()
        return self._choose(operator, axes, dtype, scalars, device, layouts, asked)

    def _choose(
        self,
        operator: Operator,
        axes: Axes,
        dtype: str,
        scalars: Mapping[str, ScalarValue],
        device: str,
        layouts: Sequence[str],
        manner: Manner,
    ) -> Choice:
        implementations = self.registry.implementations(operator.name)
        known = self.known(operator, device)
        beliefs = known.beliefs
        passed_over: list[tuple[str, str]] = []
        fit: dict[str, Implementation] = {}
        for item in implementations:
            if item.backend in COMPARED_WITH:
                continue
            if item.not_called:
                passed_over.append((item.name, item.not_called))
                continue
            reason = self._unfit(item, axes, dtype, scalars, device, layouts, beliefs)
            if reason is None:
                fit[item.name] = item
            else:
                passed_over.append((item.name, reason))
        place = place_of(operator, axes, dtype, scalars, manner, known.device)
        tuned = self._tuned_choice(operator, axes, dtype, scalars, device, place, fit, known, passed_over)
        if tuned is not None:
            return tuned
        if fit:
            picked = pick(self.model(operator, dtype, scalars, device), list(fit.values()), place)
            item = picked.implementation
            if picked.guess is not None and picked.guess.nearest is not None:
                config = picked.guess.nearest.config
                bounds = known.device.bounds()
                if isinstance(item.allows(config, axes, dtype, DTYPES[dtype].itemsize, scalars, bounds), Rejected):
                    config = item.default
                return Choice(implementation=item, config=config, why=picked.words, passed_over=tuple(passed_over))
            # no time of this device: of the points that passed here its default where that is one of them
            passed = [
                evidence.config
                for evidence in beliefs.evidence
                if (evidence.implementation, evidence.dtype) == (item.name, dtype)
            ]
            config = item.default if item.default in passed else passed[-1]
            return Choice(
                implementation=item,
                config=config,
                why=f"{picked.words}; {known.whose(item.name, dtype)}",
                passed_over=tuple(passed_over),
            )
        why = (
            "nothing else is verified for this call on this machine; verify and time what could win with: opforge "
            f"qualify {operator.name}"
        )
        last = fallback(implementations)
        return Choice(implementation=last, config=last.default, why=why, passed_over=tuple(passed_over))

    def _tuned_choice(
        self,
        operator: Operator,
        axes: Axes,
        dtype: str,
        scalars: Mapping[str, ScalarValue],
        device: str,
        place: Place,
        fit: Mapping[str, Implementation],
        known: OperatorBeliefs,
        passed_over: list[tuple[str, str]],
    ) -> Choice | None:
        """The choice that `opforge tune` wrote for this shape class, where it is of the program that is there now, and
        of inputs that lie as these do.
        """
        for path in choice_files(operator, self._name(device)):
            found = self._choice_in(path, operator, axes, dtype, scalars, place, fit, known, passed_over)
            if found is not None:
                return found
        return None

    def _choice_in(
        self,
        path: Path,
        operator: Operator,
        axes: Axes,
        dtype: str,
        scalars: Mapping[str, ScalarValue],
        place: Place,
        fit: Mapping[str, Implementation],
        known: OperatorBeliefs,
        passed_over: list[tuple[str, str]],
    ) -> Choice | None:
        where = f"tuned/{path.name}" if operator.folder in path.parents else str(path)
        try:
            tuned = choice_for(path, operator.compute_dtype_of(dtype, scalars), axes, operator.kind_of_call(scalars))
        except UsageError as error:
            # a call that worked yesterday must not fail for a file that only says how to be faster
            cause = error.__cause__
            passed_over.append(
                (
                    where,
                    f"it is damaged ({type(cause).__name__}: {cause}); remove it and renew it with: opforge tune "
                    f"{operator.name}",
                )
            )
            return None
        if tuned is None or tuned.implementation not in fit:
            return None
        candidate = fit[tuned.implementation]
        refusal = known.beliefs.refused.get((candidate.name, dtype, tuned.config), "")
        if refusal or not is_of(candidate, tuned.source_sha256, tuned.code_sha256):
            passed_over.append(
                (
                    f"{candidate.name} as in {where}",
                    refusal or f"tuned with another version of its source; renew it with: opforge tune {operator.name}",
                )
            )
        elif tuned.axes is not None and manner_as(operator, tuned.axes, dtype, scalars, "contiguous") != place.manner:
            passed_over.append((f"{candidate.name} as in {where}", "tuned on inputs that lie otherwise than these"))
        else:
            return Choice(
                implementation=candidate,
                config=tuned.config,
                why=f"chosen for this shape class in {where}",
                passed_over=tuple(passed_over),
            )
        return None

    def _unfit(
        self,
        item: Implementation,
        axes: Axes,
        dtype: str,
        scalars: Mapping[str, ScalarValue],
        device: str,
        layouts: Sequence[str],
        beliefs: Beliefs,
    ) -> str | None:
        if not beliefs.passes(item.name, dtype):
            doubt = beliefs.doubts.get((item.name, dtype), "")
            return f"no Pass in the records for {dtype} on this machine, of the source as it is now" + (
                f": {doubt}" if doubt else ""
            )
        mode = self._modes.get((item.backend, device)) or self._modes.setdefault(
            (item.backend, device), backend(item.backend).execution_mode(device)
        )
        if not isinstance(mode, Native):
            return str(mode)
        answer = item.accepts(axes, dtype, scalars)
        if isinstance(answer, Rejected):
            return answer.reason
        if item.backend != "torch":
            strange = [layout for layout in layouts if layout != "contiguous" and layout not in item.layouts]
            if strange:
                return f"an input is {strange[0]}; it takes {', '.join(item.layouts)}"
        return None
