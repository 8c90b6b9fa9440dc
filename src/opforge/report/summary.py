"""The top of the page: counts, the fastest of each operator, and one table that shows everything at a glance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opforge.core.evidence.record import Record
from opforge.core.evidence.timing_terms import CALL, WORDS
from opforge.core.evidence.verdict import REFUSED, LibraryFallback, Pass
from opforge.core.language import units
from opforge.report.record_text import VERIFIED, axes, clean, untimed, verdict_word
from opforge.report.view import (
    BASELINE,
    Group,
    by_implementation,
    column,
    columns_of,
    geometric_mean,
    groups,
    of_roof,
    standing,
    timing_of,
    unique,
)

_STEPS = (0.25, 0.5, 0.8, 1.25, 2.0, 4.0)
"""Edges between the shades of a ratio; 0.8 to 1.25 is "about the same"."""


def counts(records: Sequence[Record]) -> dict[str, int]:
    """How many operators, implementations and kernels there are, and how they stand."""
    standings = [standing(members) for members in by_implementation(records).values()]
    return {
        "operators": len(unique(record.operator for record in records)),
        "implementations": len(standings),
        "passed": standings.count("passed"),
        "failed": standings.count("failed"),
        "refused": standings.count("refused"),
        "not accurate": standings.count("not accurate"),
        "not run": standings.count("not run"),
        "timed": sum(timing_of(record) is not None for record in records),
    }


def sentences(records: Sequence[Record], found: Sequence[Group]) -> tuple[str, ...]:
    """The result in words."""
    if not records:
        return ("No records. Make some with: opforge bench --all",)
    count = counts(records)
    lines = [
        f"{units.plural(count['operators'], 'operator')} with "
        f"{units.plural(count['implementations'], 'implementation')}: "
        f"{count['passed']} passed verification, {count['failed']} failed, {count['not run']} could not be run"
        + (
            f", {units.plural(count['not accurate'], 'baseline')} not accurate and timed all the same"
            if count["not accurate"]
            else ""
        )
        + (f", {count['refused']} refused by policy." if count["refused"] else ".")
    ]
    lines += _headline([group for group in found if group.terms == CALL], count["timed"])
    emulated: dict[str, list[str]] = {}
    for record in records:
        if isinstance(record.verdict, Pass) and timing_of(record) is None and untimed(record) != VERIFIED:
            emulated.setdefault(untimed(record), []).append(clean(record.backend))
    lines += [
        f"On this device {units.listed(unique(names))} {'was' if len(set(names)) == 1 else 'were'} {how}."
        for how, names in emulated.items()
    ]
    return tuple(lines)


KEPT = ", on a CPU in a process that keeps freed memory"
"""As a worker does (runner.walls.sandbox.KEPT_MEMORY). In a user's process that is chance, and a call that makes its
result takes 3 to 6 times as long where it isn't so: docs/pytorch.md says how to have it.
"""


def _headline(found: Sequence[Group], timed: int) -> list[str]:
    """What a user who calls ours in place of what there is would see on a stopwatch; of rows whose ratio is
    certain (core.evidence.paired_times), and no others.
    """
    compared = [(group, ratio) for group in found if (ratio := group.over_alternative) is not None]
    ratios = [ratio for group, ratio in compared if group.certain_of_alternative]
    mean, left_out = geometric_mean(ratios), len(compared) - len(ratios)
    unsure = (
        f" In {left_out} of {units.plural(len(compared), 'comparison')} the machine was too uneven: it is unsure, "
        "and no ratio is made of it. Measure again on a quieter machine."
        if left_out
        else ""
    )
    if mean is not None:
        return [
            f"In {units.plural(len(ratios), 'comparison')} of operator, workload and dtype, the fastest verified "
            f"implementation of ours runs at {units.ratio(mean)} the speed of "
            "the best alternative, which is the fastest of torch eager, torch.compile and libraries; both "
            f"{WORDS[CALL]}{KEPT if any(_by_host(group) for group, _ in compared) else ''} "
            f"(geometric mean; from {units.ratio(min(ratios))} to {units.ratio(max(ratios))}).{unsure}"
        ]
    if compared:
        return [unsure.strip()]
    return (
        [f"{BASELINE} was not timed beside ours {WORDS[CALL]} in these runs, so no speed-up is stated."]
        if timed
        else []
    )


def _by_host(group: Group) -> bool:
    """Whether calls were timed by the host's clock, as they are on a CPU."""
    return any(timing is not None and timing.timer == "host" for timing in map(timing_of, group.timed))


def fastest(found: Sequence[Group], anchors: Mapping[str, str]) -> list[dict[str, Any]]:
    """One row per operator and device: who is fastest how often, against the best alternative (certain rows alone), and
    under the roofline.
    """
    rows = []
    several = len(unique(group.device for group in found)) > 1
    for operator, device in dict.fromkeys((group.operator, group.device) for group in found):
        timed = [
            group
            for group in found
            if (group.operator, group.device, group.terms) == (operator, device, CALL) and group.leaders
        ]
        if not timed:
            continue
        wins: dict[str, int] = {}
        for group in timed:
            wins[group.timed[0].implementation] = wins.get(group.timed[0].implementation, 0) + 1
        ranked = sorted(wins, key=lambda name: (-wins[name], name))
        ratios = [
            ratio for group in timed if group.certain_of_alternative and (ratio := group.over_alternative) is not None
        ]
        fractions = [fraction for group in timed if (fraction := of_roof(group.timed[0])) is not None]
        mean, roof = geometric_mean(ratios), geometric_mean(fractions)
        rows.append(
            {
                "operator": clean(operator) + (f" on {clean(device)}" if several else ""),
                "anchor": anchors[operator],
                "who": [(clean(name), f"{wins[name]} of {len(timed)}") for name in ranked],
                "ratio": units.ratio(mean) if mean is not None else "–",
                "range": f"{units.ratio(min(ratios))} to {units.ratio(max(ratios))}" if len(ratios) > 1 else "",
                "shade": shade(mean),
                "roof": units.percent(roof) if roof is not None else "–",
            }
        )
    return rows


def overview(records: Sequence[Record], found: Sequence[tuple[str, Group]]) -> dict[str, Any]:
    """Rows of operator, workload and dtype; a column per backend; the fastest of each backend, shaded by its ratio to
    torch eager.
    """
    columns = columns_of(records)
    without_workload = {
        (record.operator, record.dtype, column(record), record.run): record
        for record in records
        if timing_of(record) is None
    }
    rows = []
    for anchor, group in found:
        cells = []
        for backend in columns:
            mine = [record for record in group.timed if column(record) == backend]
            other = without_workload.get((group.operator, group.dtype, backend, group.run))
            cells.append(_cell(group, mine[0]) if mine else _blank(other))
        rows.append(
            {
                "operator": clean(group.operator),
                "workload": clean(group.workload) + (f" ({WORDS[group.terms]})" if group.terms != CALL else ""),
                "dtype": group.dtype,
                "axes": axes(group.records[0]),
                "anchor": anchor,
                "cells": cells,
            }
        )
    return {"columns": [clean(name) for name in columns], "rows": rows}


def _cell(group: Group, record: Record) -> dict[str, str]:
    timing, speedup = timing_of(record), group.speedup(record)
    assert timing is not None
    return {
        "main": "" if speedup is None else units.ratio(speedup),
        # without a ratio too the time stands where those of the other rows do
        "small": units.seconds(timing.median_s),
        "shade": shade(speedup) + (" alone" if speedup is None else "") + (" best" if record in group.leaders else ""),
        "tip": clean(group.label(record)),
    }


def _blank(record: Record | None) -> dict[str, str]:
    if record is None:
        return {"main": "", "small": "", "shade": "none", "tip": "no implementation"}
    match record.verdict:
        case LibraryFallback():
            word = "refused"
        case Pass():
            word = "verified"
        case verdict:
            word = "failed" if isinstance(verdict, REFUSED) else verdict_word(record)
    return {
        "main": "",
        "small": word,
        "shade": "none bad" if word in ("failed", "refused") else "none",
        "tip": clean(f"{record.implementation}: {verdict_word(record)}"),
    }


def shade(ratio: float | None) -> str:
    """The class of a ratio's shade: r0 (far slower) to r6 (far faster)."""
    return "rn" if ratio is None else f"r{sum(ratio >= step for step in _STEPS)}"


def comparable(records: Sequence[Record]) -> tuple[Group, ...]:
    """The groups that hold at least one time."""
    return tuple(group for group in groups(records) if group.timed)
