"""Exploits and honest kernels as candidates of the loop: refused unread, refused by a trial, or accepted.

A candidate goes the way of `opforge optimize`: its text is looked at (forge.loop.changes), it is bound, right on the
workload, verified and timed (forge.loop.trials), and one that came so far is verified on all cases.
"""

from __future__ import annotations

import itertools
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

from tests.redteam.cheats import HOME, cheats
from tests.redteam.published import EXPLOITS, PLAIN

from opforge.core.evidence.verdict import Pass
from opforge.core.language.errors import UsageError
from opforge.forge.loop.changes import refusal
from opforge.forge.loop.trials import Trials
from opforge.registry import Home, Registry, load
from opforge.registry.discovery import PACKAGE_HOME, find_operator
from opforge.runner import Isolated
from opforge.trial import check
from opforge.verify import BRIEF


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What became of a candidate. `stage`: "unread", "trial", "cases", or "accepted"."""

    name: str
    stage: str
    words: str

    @property
    def accepted(self) -> bool:
        return self.stage == "accepted"


def send(trials: Trials, text: str, like: str, name: str, dtype: str) -> Sent:
    """What becomes of one candidate."""
    suffix = trials.implementation.source.suffix
    if said := refusal(text, suffix, like):
        return Sent(name=name, stage="unread", words=said)
    try:
        made = trials.made(text)
    except UsageError as error:
        return Sent(name=name, stage="unread", words=str(error))
    outcome = trials.tried(made, None)
    if outcome.passed is None:
        return Sent(name=name, stage="trial", words=f"{type(outcome.verdict).__name__} {outcome.reason}")
    verdict = check(trials.cases, made, dtype, BRIEF, outcome.passed.config)
    trials.drop(lambda item: False)
    if not isinstance(verdict, Pass):
        return Sent(name=name, stage="cases", words=type(verdict).__name__)
    return Sent(name=name, stage="accepted", words="")


Item = TypeVar("Item")
Part = tuple[int, int]
"""(2, 3): the second of three parts of the candidates, in their order."""
ALL: Part = (1, 1)


def part_of(items: Sequence[Item], part: Part) -> Sequence[Item]:
    """One part of several; together they are everything, each once.

    >>> [list(part_of("abcde", (number, 3))) for number in (1, 2, 3)]
    [['a'], ['b', 'c'], ['d', 'e']]
    """
    number, of = part
    return items[len(items) * (number - 1) // of : len(items) * number // of]


def published(count: int, part: Part = ALL) -> Iterator[Sent]:
    """Of `count` published exploits, spread over the operators, a part: in loops over PyTorch's own kernel."""
    wanted = part_of(EXPLOITS[:: max(1, len(EXPLOITS) // count)][:count], part)
    with tempfile.TemporaryDirectory(prefix="published-") as folder, Isolated() as host:
        for operator in dict.fromkeys(item.operator for item in wanted):
            home = Path(folder) / "home" / operator
            shutil.copytree(find_operator(PACKAGE_HOME, operator), home, ignore=shutil.ignore_patterns("tuned"))
            definition = (home / "op.py").read_text(encoding="utf-8")
            # the operator of its gradients is not in this home
            definition = re.sub(r"^    gradient=.*\n", "", definition, flags=re.MULTILINE)
            (home / "op.py").write_text(definition, encoding="utf-8")
            (home / "torch_eager.py").write_text(PLAIN[operator], encoding="utf-8")
            trials = _trials(
                Registry((Home(home.parent, "red team"),)), operator, "torch_eager", "float32", host, folder
            )
            try:
                for item in wanted:
                    if item.operator == operator:
                        yield send(trials, item.text, PLAIN[operator], item.name, "float32")
            finally:
                trials.close()


def planted(count: int, part: Part = ALL) -> Iterator[Sent]:
    """Of the first `count` of the red team's own cheats a part, each in a loop over the file that it is."""
    registry = load([HOME])
    known = [cheat for cheat in cheats(HOME) if not cheat.left and not cheat.name.startswith("triton_")]
    wanted = part_of(known[:count], part)
    # these operators have no store of adequate tolerances, and no gradient: what is asked is whether they get through
    with (
        tempfile.TemporaryDirectory(prefix="planted-") as folder,
        Isolated() as host,
        patch("opforge.forge.loop.trials.ensure_adequate", lambda operator: None),
    ):
        for number, cheat in enumerate(wanted):
            place = f"{folder}/{number}"
            trials = _trials(registry, cheat.operator, cheat.name, "float32", host, place)
            try:
                text = trials.implementation.source.read_text(encoding="utf-8")
                yield send(trials, text, text, f"{cheat.operator}/{cheat.name}", "float32")
            finally:
                trials.close()


def honest(count: int, part: Part = ALL) -> Iterator[Sent]:
    """Of `count` honest candidates a part: the package's C++ kernels, each in a loop over itself, dtype by dtype."""
    registry = load()
    known = [
        (operator.dtypes[at], item)
        for at in range(3)
        for operator in map(registry.operator, registry.names())
        if at < len(operator.dtypes) and any(work.scale == "laptop" for work in operator.workloads)
        for item in registry.implementations(operator.name)
        if item.backend == "cpp"
    ]
    wanted = part_of(known[:count], part)
    with tempfile.TemporaryDirectory(prefix="honest-") as folder, Isolated() as host:
        for (dtype, name), members in itertools.groupby(wanted, lambda one: (one[0], one[1].operator)):
            items = [item for _, item in members]
            trials = _trials(registry, name, items[0].name, dtype, host, f"{folder}/{dtype}-{name}")
            try:
                for item in items:
                    text = item.source.read_text(encoding="utf-8")
                    yield send(trials, text, text, f"{name}/{item.name} {dtype}", dtype)
            finally:
                trials.close()


def _trials(registry: Registry, operator: str, name: str, dtype: str, host: Isolated, folder: str) -> Trials:
    definition = registry.operator(operator)
    small = [work for work in definition.workloads if work.scale == "laptop"] or list(definition.workloads)
    implementation = registry.implementation(operator, name)
    return Trials(
        registry, implementation, small[0], dtype, device="cpu", host=host, folder=Path(folder, "loop"), budget_s=0.2
    )
