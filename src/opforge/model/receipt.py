"""What a patch did to each call site of a model: replaced, refused and why, or never reached; proven by what ran."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from opforge.model.rewriting import Site
from opforge.model.watching import Seen


class Status(StrEnum):
    """What became of a call site.

    REPLACED       at least one of its calls was computed by an operator of opforge's
    REFUSED        it ran, and PyTorch computed every call; or it cannot be replaced
    NEVER_REACHED  the example inputs did not call it
    NOT_RUN        it was replaced, and nothing has run that would prove it
    """

    REPLACED = "replaced"
    REFUSED = "refused"
    NEVER_REACHED = "never reached"
    NOT_RUN = "not run"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One call site of one module.

    path      the module's name in the model; "" for the model itself
    site      the function, and where it is called
    status    what became of it
    computed  by (phase, operator, implementation): how many calls an operator computed
    refused   by (phase, reason): how many calls PyTorch computed
    why       why nothing of it is replaced; "" where calls say so themselves
    """

    path: str
    site: Site
    status: Status
    computed: Mapping[tuple[str, str, str], int]
    refused: Mapping[tuple[str, str], int]
    why: str = ""

    @property
    def operators(self) -> tuple[str, ...]:
        return tuple(sorted({operator for _, operator, _ in self.computed}))

    @property
    def implementations(self) -> tuple[str, ...]:
        return tuple(sorted({f"{operator}:{name}" for _, operator, name in self.computed}))

    @property
    def by_torch(self) -> bool:
        """Whether every implementation that computed it is PyTorch's, through the operator."""
        return all(name.startswith("torch_") for _, _, name in self.computed)

    @property
    def words(self) -> str:
        """What computed the calls, and why others were PyTorch's."""
        by_phase: dict[str, list[str]] = {}
        for (phase, operator, name), calls in sorted(self.computed.items()):
            by_phase.setdefault(phase, []).append(f"{operator} by {name} × {calls}")
        for (phase, reason), calls in sorted(self.refused.items()):
            by_phase.setdefault(phase, []).append(f"PyTorch × {calls}: {reason}")
        parts = [f"{phase}: {', '.join(words)}" if phase else ", ".join(words) for phase, words in by_phase.items()]
        return "; ".join(parts) or self.why


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The lines of a patched model.

    model     the name of its class
    ran       what ran to prove it: "forward", "training step"; nothing where no example was given
    lines     one for each call site of each module
    agreement in words how the patched model agrees with what it was; "" where that was not asked
    """

    model: str
    ran: tuple[str, ...]
    lines: tuple[Line, ...]
    agreement: str = ""

    def of(self, status: Status) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if line.status is status)

    @property
    def replaced(self) -> tuple[Line, ...]:
        return self.of(Status.REPLACED)

    @property
    def refused(self) -> tuple[Line, ...]:
        return self.of(Status.REFUSED)

    @property
    def never_reached(self) -> tuple[Line, ...]:
        return self.of(Status.NEVER_REACHED)

    def __str__(self) -> str:
        return "\n".join(self.text())

    def text(self) -> list[str]:
        """The receipt in lines; modules of one kind that fared alike share one."""
        counts = Counter(line.status for line in self.lines)
        parts = [f"{counts[status]} {status}" for status in Status if counts[status]]
        ran = f"proven by what ran: {' and '.join(self.ran)}" if self.ran else "nothing ran: give example=…"
        out = [f"{self.model}: {len(self.lines)} call sites, {', '.join(parts)} ({ran})"]
        if self.replaced:
            own = sum(not line.by_torch for line in self.replaced)
            out.append(
                f"  {own} of the replaced are computed by kernels of opforge, {len(self.replaced) - own} by PyTorch "
                "through the operator"
            )
            unverified = sorted({name for line in self.replaced if line.by_torch for name in line.operators})
            if unverified:
                out.append(f"  to verify and time kernels for those: opforge qualify {' '.join(unverified)}")
        if self.agreement:
            out.append(f"  {self.agreement}")
        for status in Status:
            of_status = self.of(status)
            if of_status:
                out.append(f"{status}:")
                out += [f"  {words}" for words in _grouped(of_status)]
        return out

    def as_json(self) -> dict[str, Any]:
        """The receipt as plain values."""
        return {
            "model": self.model,
            "ran": list(self.ran),
            "agreement": self.agreement,
            "lines": [
                {
                    "path": line.path,
                    "function": line.site.function,
                    "file": line.site.file,
                    "line": line.site.line,
                    "where": line.site.where,
                    "status": str(line.status),
                    "computed": [
                        {"phase": phase, "operator": operator, "implementation": name, "calls": calls}
                        for (phase, operator, name), calls in sorted(line.computed.items())
                    ],
                    "refused": [
                        {"phase": phase, "reason": reason, "calls": calls}
                        for (phase, reason), calls in sorted(line.refused.items())
                    ],
                    "why": line.why,
                }
                for line in self.lines
            ],
        }


def _grouped(lines: Sequence[Line]) -> list[str]:
    groups: dict[tuple[str, Site, str], list[str]] = {}
    for line in lines:
        general = re.sub(r"(?<![^.])\d+(?![^.])", "*", line.path)
        groups.setdefault((general, line.site, line.words), []).append(line.path)
    return [
        f"{f'{len(paths)} × ' if len(paths) > 1 else ''}{(general if len(paths) > 1 else paths[0]) or 'the model'}  "
        f"{site}{f'  {words}' if words else ''}"
        for (general, site, words), paths in groups.items()
    ]


def line_of(path: str, site: Site, seen: Seen | None, ran: bool, why: str = "") -> Line:
    """The Line of a site, by what was seen of it."""
    computed, refused = (seen.computed, seen.refused) if seen else (Counter(), Counter())
    if computed:
        status = Status.REPLACED
    elif refused or why:
        status = Status.REFUSED
    else:
        status = Status.NEVER_REACHED if ran else Status.NOT_RUN
    return Line(path=path, site=site, status=status, computed=dict(computed), refused=dict(refused), why=why)
