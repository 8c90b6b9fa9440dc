"""How many cheats of each family were asked, caught and got through: the table at the end of `make redteam`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FAMILIES = {
    "A": "output",
    "B": "precision, semantics",
    "C": "replay",
    "D": "timing",
    "E": "harness attack",
    "F": "hostile",
    "M": "made for this verifier",
}
"""By the first letter of a place in the catalogue."""
WHITE_BOX = {
    "M1": "the parent owns the time",
    "M2": "what was timed is judged",
    "M3": "siblings and the server are out of reach",
    "M4": "seal and close",
    "M5": "a bound that coarse arithmetic cannot pass",
    "M6": "cases that are really asked",
    "M7": "a backend's claim",
}
"""Families of those who have read the verifier."""


@dataclass(frozen=True, kw_only=True)
class Met:
    """One cheat or attack that was tried with every guard up: its place in the catalogue, and whether it was caught or
    had no effect.
    """

    catalogue: str
    name: str
    caught: bool

    @property
    def family(self) -> str:
        """Of white-box cheats each family stands for itself, of known ones the letter."""
        return self.catalogue if self.catalogue in WHITE_BOX else self.catalogue[0]


def by_family(met: Sequence[Met]) -> str:
    """The table, a line for each family and one for the white-box part; names of those that got through."""
    titles = {**FAMILIES, **WHITE_BOX}
    groups = {family: [item for item in met if item.family == family] for family in titles}
    lines = [_line(f"{family} {titles[family]}", group) for family, group in groups.items() if group]
    white_box = [item for item in met if item.family in WHITE_BOX]
    if white_box:
        lines.append(_line("M1 to M7 together", white_box))
    return "\n".join([f"{'family':<48}  asked  caught  through", *lines])


def _line(title: str, group: Sequence[Met]) -> str:
    through = [item.name for item in group if not item.caught]
    caught = len(group) - len(through)
    return f"{title:<48}  {len(group):>5}  {caught:>6}  {len(through):>7}  {', '.join(through)}".rstrip()
