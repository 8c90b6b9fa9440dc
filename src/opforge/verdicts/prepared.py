"""Cases made ready: memory filled, truth known, shared by every implementation of an operator."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from opforge.core.operator import Case, Operator
from opforge.registry import Registry
from opforge.runner import Arena, Host, allocate, fill, fresh_seed
from opforge.verdicts.oracle import Truth, consult
from opforge.verdicts.suite import Effort, hidden_cases
from opforge.verdicts.threads import give_back, judging_place, threads_for

BIND_LIMIT_S = 300.0
RUN_LIMIT_S = 120.0


@dataclass(kw_only=True)
class Prepared:
    """A case ready to be run: its arena filled, its truth known, its guarded bytes remembered. Reused between implementations."""

    case: Case
    dtype: str
    arena: Arena
    truth: Truth
    pristine: Any
    guarded: Any
    place: Any

    def seen(self) -> Arena:
        """The arena as a kernel left it, where it is judged: itself, or its bytes in the memory of the judge's device."""
        return self.arena if self.place.type == "cpu" else self.arena.mirror(self.place, filled=True)

    def reset(self) -> None:
        """Bring every byte back to what it was before a kernel saw it."""
        self.arena.bytes().copy_(self.pristine)


@dataclass(kw_only=True)
class Bench:
    """The cases of one operator on one device, with oracles computed once and shared by its implementations.

    bind_limit_s, run_limit_s   seconds a kernel may take to compile, and to run once
    """

    registry: Registry
    operator: Operator
    host: Host
    device: str
    bind_limit_s: float = BIND_LIMIT_S
    run_limit_s: float = RUN_LIMIT_S
    prepared: dict[tuple[str, str], Prepared] = field(default_factory=dict)
    successors: dict[tuple[str, str], Prepared] = field(default_factory=dict)
    drawn: dict[tuple[str, int, int], tuple[Case, ...]] = field(default_factory=dict)

    def prepare(self, case: Case, dtype: str) -> Prepared:
        """The case with fresh input values (or those of its recorded seed) and the oracle's answer."""
        key = (case.name, dtype)
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

    def prepare_if_defined(self, case: Case, dtype: str) -> Prepared | None:
        """As `prepare`, or None where the reference itself refuses such axes: a drawn case may lie outside what is defined."""
        try:
            return self.prepare(case, dtype)
        except (OSError, MemoryError):
            # this machine has no room for it: that says nothing of the case
            raise
        except Exception:  # noqa: BLE001 - the reference is a guest's code: what it raises on axes nobody declared says that they are not meant
            return None

    def refresh(self, prepared: Prepared) -> Prepared:
        """The same memory with other input values, nobody has seen before, and the oracle's answer to them. A kernel that
        remembers an answer, by address, by shape or by having seen the inputs while it was timed, is wrong now."""
        return self._filled(dataclasses.replace(prepared.case, seed=fresh_seed()), prepared.dtype, prepared.arena)

    def refill(self, prepared: Prepared, case: Case) -> Prepared:
        """The same memory with the values of another case of the same axes, dtype and layout: for replays."""
        return self._filled(case, prepared.dtype, prepared.arena)

    def hidden(self, dtype: str, effort: Effort, stood: bool) -> tuple[Case, ...]:
        """Cases drawn at run time, once for all implementations of the operator, so that the oracle is asked once."""
        most = effort.stood_elements if stood else effort.elements
        key = (dtype, most, effort.hidden)
        if key not in self.drawn:
            cases = hidden_cases(self.operator, dtype, count=effort.hidden, most_elements=most)
            prefix = "small_" if stood else ""
            self.drawn[key] = tuple(dataclasses.replace(case, name=prefix + case.name) for case in cases)
        return self.drawn[key]

    def successor(self, prepared: Prepared) -> Prepared:
        """New content for the memory of a case: the other twin, or values of a fresh seed. Asked twice, the same answer."""
        key = (prepared.case.name, prepared.dtype)
        if key not in self.successors:
            seed = (prepared.case.seed or 0) ^ 1 if prepared.case.distribution == "twins" else fresh_seed()
            self.successors[key] = self._filled(dataclasses.replace(prepared.case, seed=seed), prepared.dtype, prepared.arena)
        return self.successors[key]

    def _filled(self, case: Case, dtype: str, arena: Arena) -> Prepared:
        assert case.seed is not None
        place = judging_place(self.device, arena.size)
        with threads_for(arena.size):
            here = arena
            if place.type != "cpu":
                arena.pin()
                here = arena.mirror(place, filled=False)
            here.poison()
            fill(here, self.operator, case, case.seed)
            truth = consult(self.operator, case, dtype, here.tensors("input"))
            pristine = here.bytes().clone() if here is arena else here.bytes()
            prepared = Prepared(case=case, dtype=dtype, arena=arena, truth=truth, pristine=pristine, guarded=here.protected(), place=place)
            if here is not arena:
                prepared.reset()
            return prepared

    def forget(self, case: Case) -> None:
        """Give a case's memory back."""
        for key in [key for key in self.prepared if key[0] == case.name]:
            gone = self.prepared.pop(key)
            gone.arena.close()
            self.successors.pop(key, None)
            if gone.place.type != "cpu":
                del gone
                give_back()

    def close(self) -> None:
        """Give all memory back."""
        for prepared in self.prepared.values():
            prepared.arena.close()
        self.prepared.clear()
        self.successors.clear()
