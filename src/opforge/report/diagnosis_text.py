"""A Diagnosis in words, for a terminal."""

from __future__ import annotations

from opforge.core.evidence.diagnosis import Diagnosis


def diagnosis_lines(found: Diagnosis) -> list[str]:
    """The class and why, the table of evidence with the criteria beside it, then what to try."""
    where = f"{found.operator}/{found.implementation}, {found.workload} {found.dtype} on {found.device}"
    lines = [f"{where}{f', {found.config}' if found.config else ''}", f"bottleneck: {found.bottleneck}"]
    lines += [f"  {found.because}", "evidence"]
    name_width = max(len(item.name) for item in found.evidence)
    for item in found.evidence:
        wanted = f"  [wanted {item.criterion}{'' if item.met is None else ': met' if item.met else ': not met'}]"
        lines.append(f"  {item.name:<{name_width}}  {item.value}{wanted if item.criterion else ''}  ({item.source})")
    lines.append("try")
    for number, direction in enumerate(found.directions, start=1):
        lines += [f"  {number}. {direction.what}: {direction.why}", f"     {direction.command}"]
    return lines
