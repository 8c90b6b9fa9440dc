"""The body of the page: failures, operators with their pictures, verification, what was not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opforge.core.evidence.record import Record
from opforge.core.evidence.verdict import (
    REFUSED,
    Broken,
    Checked,
    Crash,
    Inaccurate,
    LibraryFallback,
    Mismatch,
    Pass,
    Statement,
    Timeout,
    Unsupported,
    Window,
)
from opforge.core.language import units
from opforge.report.bar_chart import bars
from opforge.report.disturbance import disturbance, notes_beside
from opforge.report.error_words import error_words
from opforge.report.histogram import error_histogram
from opforge.report.record_text import (
    axes,
    case_words,
    clean,
    clean_lines,
    describe,
    ended,
    index,
    saved,
    untimed,
    verdict_word,
)
from opforge.report.timing_evidence import Past, evidence as evidence_of, machines
from opforge.report.view import Group, memory_bound, roof_of, slots, sound, timing_of, unique, verdict_key


def failures(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Each failing or refused verdict once, with its evidence in rows of (name, value)."""
    by_cause: dict[str, dict[str, Any]] = {}
    for record in records:
        if not isinstance(record.verdict, REFUSED) or verdict_key(record) in by_cause:
            continue
        by_cause[verdict_key(record)] = {
            "operator": clean(record.operator),
            "implementation": clean(record.implementation),
            "dtype": clean(record.dtype),
            "kind": type(record.verdict).__name__,
            "sentence": describe(record.verdict),
            "evidence": evidence(record),
            "window": window(record.verdict.window)
            if isinstance(record.verdict, Mismatch) and record.verdict.window is not None
            else None,
            "stderr": clean_lines(record.verdict.stderr[-4000:]).strip() if isinstance(record.verdict, Crash) else "",
        }
    return list(by_cause.values())


def evidence(record: Record) -> list[tuple[str, str]]:
    """What a failing or refused verdict has to show, in rows of (name, value)."""
    verdict = record.verdict
    assert isinstance(verdict, REFUSED)
    rows: list[tuple[str, str]] = []
    if verdict.case is not None:
        rows += [("case", clean(f"{verdict.case.name}: {verdict.case.why}")), ("inputs", case_words(verdict.case))]
    if isinstance(verdict, (Mismatch, Broken, Crash)) and verdict.shrunk_from is not None:
        rows.append(("shrunk from", case_words(verdict.shrunk_from)))
    if isinstance(verdict, Mismatch) and verdict.after is not None:
        rows.append(("right before for", clean(f"{verdict.after.name}: {case_words(verdict.after)}")))
    match verdict:
        case Mismatch(law=str(law)):
            rows += [("law", clean(law)), ("violated", clean(verdict.cause))]
        case Mismatch():
            rows += [
                ("index", clean(f"{verdict.output}[{index(verdict.index)}]")),
                ("expected", units.number(verdict.expected)),
                ("actual", units.number(verdict.actual)),
                ("tolerance", units.number(verdict.tolerance)),
                ("wrong", f"{verdict.wrong} of {units.plural(verdict.total, 'element')}"),
                ("likely cause", clean(verdict.cause)),
            ]
        case Broken():
            rows.append(("reason", clean(verdict.reason)))
        case Crash():
            rows.append(("ended by", ended(verdict.status)))
        case Timeout():
            rows.append(("limit", units.seconds(verdict.limit_s)))
        case LibraryFallback():
            rows += [("reason", clean(verdict.reason)), ("evidence", clean("; ".join(verdict.evidence)))]
    return [
        *rows,
        ("workload", clean(record.workload) or "verification cases"),
        ("isolation", clean(verdict.isolation)),
    ]


def window(found: Window) -> dict[str, Any]:
    """The neighbourhood of a wrong element: per row a list of (actual, expected, whether it is wrong)."""
    rows = [
        [(units.number(actual), units.number(expected), wrong) for actual, expected, wrong in zip(*row, strict=False)]
        for row in zip(found.actual, found.expected, found.wrong, strict=False)
    ]
    return {
        "caption": clean(f"{found.output} from [{index(found.corner)}]: actual above, expected below"),
        "rows": rows,
    }


def operators(
    records: Sequence[Record], found: Sequence[tuple[str, Group]], anchors: Mapping[str, str], pasts: Mapping[str, Past]
) -> list[dict[str, Any]]:
    """One section per operator: its groups with pictures, then its verification."""
    colours, told = slots(records), disturbance(records)
    runs, devices = (
        len(unique(record.run for record in records)) > 1,
        len(unique(record.device for record in records)) > 1,
    )
    return [
        {
            "name": clean(operator),
            "anchor": anchors[operator],
            "groups": [
                _group(group, anchor, colours, runs, devices, pasts, told)
                for anchor, group in found
                if group.operator == operator
            ],
            **verification([record for record in records if record.operator == operator]),
        }
        for operator in unique(record.operator for record in records)
    ]


def _group(
    group: Group,
    anchor: str,
    colours: Mapping[str, int],
    runs: bool,
    devices: bool,
    pasts: Mapping[str, Past],
    told: str,
) -> dict[str, Any]:
    first = group.timed[0]
    roof = roof_of(first)
    where = [f"on {group.device}"] * devices + [f"run {group.run}, {group.records[0].created_at[:16]}"] * runs
    cost = [
        f"{units.size(first.cost.bytes)} moved{saved(first)}",
        units.flops(first.cost.flops),
        f"{units.number(first.cost.intensity)} FLOP/byte",
    ]
    return {
        "anchor": anchor,
        "workload": clean(group.workload),
        "dtype": clean(group.dtype),
        "where": clean(", ".join(where)),
        "axes": axes(first),
        "cost": ", ".join(cost),
        "roof": clean(
            f"roofline bound {units.seconds(roof)}, set by "
            f"{first.limiter or ('memory' if memory_bound(first) else 'arithmetic')}"
        )
        if roof is not None
        else "no ceilings known",
        "fastest": _fastest(group, told),
        "picture": bars(group, colours),
        "evidence": evidence_of(group, pasts),
        "machines": machines(group),
        "notes": [
            (clean(group.label(record)), clean("; ".join(weak)))
            for record in group.records
            if (weak := notes_beside(record, told))
        ],
        "others": [
            (clean(group.label(record)), tone(record), _untimed_words(record))
            for record in group.records
            if timing_of(record) is None
        ],
        "conditions": [
            clean(words)
            for words in unique(words for record in group.timed if record.timing for words in record.timing.conditions)
        ],
    }


def _untimed_words(record: Record) -> str:
    return untimed(record) if isinstance(record.verdict, Pass) else describe(record.verdict)


def _fastest(group: Group, told: str) -> str:
    first = group.timed[0]
    timing, speedup = timing_of(first), group.speedup(first)
    assert timing is not None
    if not group.leaders:
        return (
            f"the times are unsteady: unsure which is the fastest; {'see the top' if told else 'the reasons are below'}"
            if sound(first)
            else "no time here can be trusted; the reasons are below"
        )
    words = f"{group.label(first)}: {units.seconds(timing.median_s)}"
    if speedup is not None and group.baseline_s != timing.median_s:
        words += f", {units.ratio(speedup)} torch eager"
    ties = [group.label(record) for record in group.leaders[1:]]
    return clean(words + (f"; these samples cannot tell it from {units.listed(ties)}" if ties else ""))


def tone(record: Record) -> str:
    """The class of a verdict's pill."""
    return "bad" if isinstance(record.verdict, REFUSED) else "good" if isinstance(record.verdict, Pass) else "idle"


def verification(records: Sequence[Record]) -> dict[str, Any]:
    """One row per implementation and dtype, its verdicts over all workloads taken together; the failing one wins.

    Isolation is said once above the rows where it is the same for all of them.
    """
    by_operator: dict[str, dict[tuple[str, str], list[Record]]] = {}
    for record in records:
        by_operator.setdefault(record.implementation, {}).setdefault((record.dtype, record.device), []).append(record)
    rows = []
    for kinds in by_operator.values():
        rows += [{**_verified(members), "first": place == 0} for place, members in enumerate(kinds.values())]
    isolations = unique(row["isolation"] for row in rows if row["isolation"])
    if len(isolations) == 1:
        rows = [{**row, "isolation": ""} for row in rows]
    return {"verification": rows, "isolation": isolations[0] if len(isolations) == 1 else ""}


def _verified(members: Sequence[Record]) -> dict[str, Any]:
    record = next((member for member in members if isinstance(member.verdict, REFUSED)), None) or next(
        (member for member in members if isinstance(member.verdict, Pass)), members[0]
    )
    passes = [member.verdict for member in members if isinstance(member.verdict, Pass)]
    row: dict[str, Any] = {
        "implementation": clean(record.implementation),
        "backend": clean(record.backend),
        "dtype": clean(record.dtype),
        "verdict": verdict_word(record)
        if isinstance(record.verdict, Unsupported | Inaccurate)
        else type(record.verdict).__name__,
        "tone": tone(record),
        "timed": "timed"
        if any(timing_of(member) for member in members)
        else untimed(record)
        if isinstance(record.verdict, Pass)
        else "",
        "isolation": clean(getattr(record.verdict, "isolation", "")),
        "sentence": "",
        "worst": "",
        "max_abs": "",
        "cases": "",
        "histogram": "",
        "not_taken": [],
        "statements": [],
    }
    if not isinstance(record.verdict, Pass):
        return {
            **row,
            "sentence": clean(record.verdict.reason)
            if isinstance(record.verdict, Unsupported)
            else describe(record.verdict),
        }
    checked: dict[tuple[str, int | None], Checked] = {
        (case.case.name, case.case.seed): case for verdict in passes for case in verdict.checked
    }
    reasons: dict[str, list[str]] = {}
    for name, reason in dict.fromkeys(pair for verdict in passes for pair in verdict.not_taken):
        reasons.setdefault(clean(reason), []).append(clean(name))
    worst = max(passes, key=lambda verdict: verdict.worst_ratio)
    return {
        **row,
        "worst": error_words(worst, record.dtype),
        "max_abs": units.number(max(verdict.max_abs for verdict in passes)),
        "cases": str(len(checked)),
        "histogram": error_histogram(checked.values()),
        "not_taken": [(units.listed(names), reason) for reason, names in reasons.items()],
        "statements": list(
            dict.fromkeys(_statement(statement) for verdict in passes for statement in verdict.statements)
        ),
    }


def _statement(statement: Statement) -> tuple[str, str]:
    """What was found in a word, and how, for who points at it."""
    holds = {True: "yes", False: "no", None: "not asked"}[statement.holds]
    return clean(f"{statement.name}: {holds}").replace("_", " "), clean(statement.detail)


def not_run(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Reasons for which something was not run, each with what it kept from running."""
    by_reason: dict[str, dict[str, set[str]]] = {}
    for record in records:
        if isinstance(record.verdict, Unsupported):
            by_reason.setdefault(clean(record.verdict.reason), {}).setdefault(
                clean(f"{record.operator} / {record.implementation}"), set()
            ).add(clean(record.dtype))
    return [
        {"reason": reason, "what": [(name, ", ".join(sorted(dtypes))) for name, dtypes in members.items()]}
        for reason, members in by_reason.items()
    ]


def emulated_kernels(records: Sequence[Record]) -> list[dict[str, Any]]:
    """What was verified and has no time, by how it was verified."""
    timed = {(record.operator, record.implementation, record.dtype) for record in records if timing_of(record)}
    by_reason: dict[str, dict[str, set[str]]] = {}
    for record in records:
        if isinstance(record.verdict, Pass) and (record.operator, record.implementation, record.dtype) not in timed:
            by_reason.setdefault(untimed(record), {}).setdefault(
                clean(f"{record.operator} / {record.implementation}"), set()
            ).add(clean(record.dtype))
    return [
        {"reason": how, "what": [(name, ", ".join(sorted(dtypes))) for name, dtypes in members.items()]}
        for how, members in by_reason.items()
    ]
