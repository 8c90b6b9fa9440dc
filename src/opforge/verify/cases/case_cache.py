"""Cases made ready: memory filled, truth known, shared by every implementation of an operator."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from opforge.core.definition.operator import Case, Operator
from opforge.core.language import spans
from opforge.core.language.errors import EnvironmentLacks, UsageError
from opforge.registry import Registry
from opforge.runner import Arena, Host, allocate, distinct, fill, fresh_seed
from opforge.verify.cases.extreme_values import EXTREMES, NARROWER, has_room, withstands
from opforge.verify.cases.hidden import Effort, hidden_cases
from opforge.verify.cases.worker_pool import WorkerPool
from opforge.verify.judging.pages import pages_kept
from opforge.verify.judging.threads import WORTH_A_DEVICE, give_back, judging_place, threads_for
from opforge.verify.oracle.expectation import Truth, consult

BIND_LIMIT_S = 300.0
RUN_LIMIT_S = 120.0


NOT_BORNE = (
    "float32 cannot bear its values: squares or sums on the way leave its range; "
    "Tolerance(whole_range=True) asks for them"
)
"""Why a case of other values is not asked."""
_NOT_MEANT = (UsageError, ArithmeticError, ValueError, RuntimeError)
"""What comes of axes that nobody declared: of the reference and of rules in op.py a UsageError that says whose it is
(`its_own_words`), of an expression over the axes an arithmetic error, of torch drawing from an empty range a
RuntimeError.
"""


_NO_ROOM = ("out of memory", "not enough memory", "t allocate memory")
"""How torch says on CUDA, on Windows and on Linux that an allocation failed."""


@dataclass(frozen=True)
class Undefined:
    """The definition leaves this case open, and why."""

    reason: str


Key = tuple[str, str, str]


def key_of(case: Case, dtype: str) -> Key:
    """What tells prepared cases apart: name, dtype and what lies in memory. A workload may be called as a case is
    ("large" of generated operators), and the one's memory must not serve as the other's.
    """
    return case.name, dtype, f"{sorted(case.axes.items())} {case.layout} {sorted(case.scalars.items())}"


def _in_a_line(error: BaseException) -> str:
    """What was raised, in one line. A name for it in the handler would keep its frames, and so the memory."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


@dataclass(kw_only=True)
class PreparedCase:
    """A case ready to be run: its arena filled, its truth known. Reused between implementations.

    pristine   all bytes as they were filled: by them it is brought back, and what a kernel may not change is known
    in_first   of the second of two twins: the same inputs with what the first has around its tensors, once somebody
               has asked (trial.in_row)
    """

    case: Case
    dtype: str
    arena: Arena
    truth: Truth
    pristine: Any
    place: Any
    in_first: PreparedCase | None = None

    def seen(self) -> Arena:
        """The arena as a kernel left it, where it is judged: itself, or its bytes in the memory of the judge's
        device.
        """
        return self.arena if self.place.type == "cpu" else self.arena.mirror(self.place, filled=True)

    @spans.spanned(lambda self, outputs=True: ("reset", "", ""))
    def reset(self, outputs: bool = True) -> None:
        """Bring every byte back to what it was before a kernel saw it. Without `outputs` what outputs hold stays, but
        for those with gaps between their elements.
        """
        here = self.arena.bytes()
        for place in (slice(0, self.arena.size),) if outputs else self.arena.around_outputs():
            here[place].copy_(self.pristine[place])


@dataclass(kw_only=True)
class CaseCache:
    """The cases of one operator on one device, with oracles computed once and shared by its implementations.

    bind_limit_s, run_limit_s   seconds a kernel may take to compile, and to run once
    pool                        keeps the workers of this operator between verifications; None: each gets a new one,
                                ended with it
    """

    registry: Registry
    operator: Operator
    host: Host
    device: str
    bind_limit_s: float = BIND_LIMIT_S
    run_limit_s: float = RUN_LIMIT_S
    prepared: dict[Key, PreparedCase] = field(default_factory=dict)
    successors: dict[Key, PreparedCase] = field(default_factory=dict)
    others: dict[Key, PreparedCase] = field(default_factory=dict)
    withstands: dict[Key, bool] = field(default_factory=dict)
    drawn: dict[tuple[str, int, int], tuple[Case, ...]] = field(default_factory=dict)
    pool: WorkerPool | None = None

    def workers(self) -> WorkerPool:
        """Where workers come from: the pool that was given, or one that keeps none."""
        return self.pool or WorkerPool(host=self.host, device=self.device, kept=False)

    def prepare(self, case: Case, dtype: str) -> PreparedCase:
        """The case with fresh input values (or those of its recorded seed) and the oracle's answer."""
        key = key_of(case, dtype)
        if key not in self.prepared:
            seeded = case if case.seed is not None else dataclasses.replace(case, seed=fresh_seed())
            assert seeded.seed is not None
            arena = allocate(self.operator, seeded, dtype)
            try:
                self.prepared[key] = self._filled(seeded, dtype, arena)
            except BaseException:
                arena.close()
                raise
        return self.prepared[key]

    def prepare_if_defined(self, case: Case, dtype: str) -> PreparedCase | Undefined:
        """As `prepare`, or why not where the reference itself refuses such axes, or float32 cannot bear such values: a
        drawn case may lie outside what is defined. What says nothing of the case is raised: EnvironmentLacks, OSError,
        want of memory, and whatever a defect of opforge raises. Of a distribution that has narrower ones it is
        the widest that float32 can bear: the case of what comes back is then another one."""
        key = key_of(case, dtype)
        try:
            prepared = self.prepare(case, dtype)
            if case.distribution in EXTREMES and key not in self.withstands:
                scaled = case.distribution in (*NARROWER, *NARROWER.values())
                self.withstands[key] = (not scaled or has_room(prepared.truth)) and withstands(
                    self.operator, prepared.case, dtype, prepared.truth
                )
        except EnvironmentLacks:
            raise
        except _NOT_MEANT as error:
            # torch says so of this machine's memory with a RuntimeError
            if isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_ROOM):
                raise
            return Undefined(_in_a_line(error.__cause__ or error))
        if not self.withstands.get(key, True):
            narrower = NARROWER.get(case.distribution)
            if narrower is not None:
                name = case.name.replace(case.distribution, narrower)
                return self.prepare_if_defined(dataclasses.replace(case, name=name, distribution=narrower), dtype)
            return Undefined(NOT_BORNE)
        return prepared

    def refresh(self, prepared: PreparedCase) -> PreparedCase:
        """The same memory with other input values, nobody has seen before, and the oracle's answer to them. A kernel
        that
        remembers an answer, by address, by shape or by having seen the inputs while it was timed, is wrong now."""
        return self._filled(dataclasses.replace(prepared.case, seed=fresh_seed()), prepared.dtype, prepared.arena)

    def twins(self, prepared: PreparedCase) -> tuple[PreparedCase, PreparedCase]:
        """The same memory with values that nobody has seen before, and with some of those in each other's places: the
        ends, every even position and the sum agree, which is what a kernel would know its inputs by.
        """
        case = prepared.case
        drawn = "twins" if case.distribution == "normal" else case.distribution
        seed = fresh_seed() & ~1
        first, second = (
            self._filled(dataclasses.replace(case, distribution=drawn, seed=each), prepared.dtype, prepared.arena)
            for each in (seed, seed + 1)
        )
        return first, second

    def refill(self, prepared: PreparedCase, case: Case) -> PreparedCase:
        """The same memory with the values of another case of the same axes, dtype and layout: for replays."""
        return self._filled(case, prepared.dtype, prepared.arena)

    def hidden(self, dtype: str, effort: Effort, emulated: bool) -> tuple[Case, ...]:
        """Cases drawn at run time, once for all implementations of the operator, so that the oracle is asked once."""
        most = effort.emulated_elements if emulated else effort.elements
        key = (dtype, most, effort.hidden)
        if key not in self.drawn:
            cases = hidden_cases(self.operator, dtype, count=effort.hidden, most_elements=most)
            prefix = "small_" if emulated else ""
            self.drawn[key] = tuple(dataclasses.replace(case, name=prefix + case.name) for case in cases)
        return self.drawn[key]

    def successor(self, prepared: PreparedCase) -> PreparedCase:
        """New content for the memory of a case: the other twin, or values of a fresh seed; what it had where float32
        cannot bear those. Asked twice, the same answer.
        """
        key = key_of(prepared.case, prepared.dtype)
        if key not in self.successors:
            case = prepared.case
            seed = (case.seed or 0) ^ 1 if case.distribution == "twins" else fresh_seed()
            made = self._filled(dataclasses.replace(case, seed=seed), prepared.dtype, prepared.arena)
            if case.distribution in EXTREMES and not withstands(self.operator, made.case, prepared.dtype, made.truth):
                # float32 bears the first values and not these: no honest kernel would be right
                made = self._filled(case, prepared.dtype, prepared.arena)
            self.successors[key] = made
        return self.successors[key]

    def repatterned(self, prepared: PreparedCase) -> PreparedCase | None:
        """The same memory with the same inputs, and the other pattern wherever no input stands. None where that takes
        long. Asked twice, the same answer.
        """
        key = key_of(prepared.case, prepared.dtype)
        arena = prepared.arena
        if key not in self.others and arena.size < WORTH_A_DEVICE:
            case = dataclasses.replace(prepared.case, pattern=1 - prepared.case.pattern % 2)
            assert case.seed is not None
            prepared.reset()
            inputs = {
                slot.name: distinct(slot, arena.tensor(slot.name)) for slot in arena.slots if slot.role == "input"
            }
            values = {name: tensor.clone() for name, tensor in inputs.items()}
            arena.poison(case.seed, case.pattern)
            for name, tensor in inputs.items():
                tensor.copy_(values[name])
            self.others[key] = dataclasses.replace(prepared, case=case, pristine=arena.bytes().clone())
        return self.others.get(key)

    @spans.spanned(lambda self, case, dtype, arena: ("oracle", f"{self.operator.name} {case.name} {dtype}", ""))
    def _filled(self, case: Case, dtype: str, arena: Arena) -> PreparedCase:
        assert case.seed is not None
        place = judging_place(self.device, arena.size)
        with threads_for(arena.size), pages_kept():
            here = arena
            if place.type != "cpu":
                arena.pin()
                here = arena.mirror(place, filled=False)
            here.poison(case.seed, case.pattern)
            fill(here, self.operator, case, case.seed)
            truth = consult(self.operator, case, dtype, here.tensors("input"))
            pristine = here.bytes().clone() if here is arena else here.bytes()
            prepared = PreparedCase(
                case=case,
                dtype=dtype,
                arena=arena,
                truth=truth,
                pristine=pristine,
                place=place,
            )
            if here is not arena:
                prepared.reset()
            if truth.waits:
                give_back()
            return prepared

    def forget(self, case: Case) -> None:
        """Give a case's memory back."""
        for key in [key for key in self.prepared if key == key_of(case, key[1])]:
            gone = self.prepared.pop(key)
            gone.arena.close()
            self.successors.pop(key, None)
            self.others.pop(key, None)
            if gone.place.type != "cpu":
                del gone
                give_back()

    def close(self) -> None:
        """Give all memory back."""
        for prepared in self.prepared.values():
            prepared.arena.close()
        self.prepared.clear()
        self.successors.clear()
        self.others.clear()
