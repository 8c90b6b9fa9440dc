"""The report as one page of HTML that needs nothing else: no network, no script, no other file."""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opforge.core.definition.device import DeviceSpec
from opforge.core.evidence.optimization import ROUND, OptimizationRound
from opforge.core.evidence.record import Record
from opforge.core.language import units
from opforge.report import sections, summary, svg
from opforge.report.disturbance import disturbance
from opforge.report.record_text import clean, clean_lines
from opforge.report.roof_chart import roofline, roofs
from opforge.report.timing_evidence import Past
from opforge.report.versions import Move, moves_of_runs, of_run
from opforge.report.view import Group, slots, timing_of, unique
from opforge.report.walls import weaker_walls


def html(
    records: Sequence[Record],
    *,
    title: str,
    device: DeviceSpec | None = None,
    pasts: Mapping[str, Past] | None = None,
    rounds: Sequence[OptimizationRound] = (),
    moves: Sequence[Move] = (),
) -> str:
    """The page for these records. `device` brings the roofs of the roofline; with records of several devices, those of
    its name.
    `pasts` are the histories of timed records, by id; `rounds` those of optimisations of these operators, each
    shown with its versions and as arrows on the roofline; `moves` other arrows there.

    Everything that comes from a record or from `title` is shown as text, never as markup. The same records give the
    same page.
    """
    import jinja2
    from markupsafe import Markup

    def printable(value: object) -> object:
        # the last gate: whatever section forgot to, no text leaves with characters that steer or reorder
        return clean_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("opforge.report", "templates"),
        autoescape=True,
        finalize=printable,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # pictures were escaped where they were drawn; nothing else on the page is taken for markup
    environment.filters["drawn"] = Markup
    style = importlib.resources.files("opforge.report").joinpath("templates/report.css").read_text(encoding="utf-8")
    return environment.get_template("report.html.j2").render(
        style=Markup(style), **_content(records, title, device, pasts or {}, rounds, moves)
    )


def _content(
    records: Sequence[Record],
    title: str,
    device: DeviceSpec | None,
    pasts: Mapping[str, Past],
    rounds: Sequence[OptimizationRound],
    moves: Sequence[Move],
) -> dict[str, Any]:
    names = _anchors(unique(record.operator for record in records))
    anchors = _group_anchors(summary.comparable(records))
    groups = [group for _, group in anchors]
    count = summary.counts(records)
    return {
        "title": clean(title),
        "when": _when(records),
        "devices": [clean(name) for name in unique(record.device for record in records)],
        "machines": _machines(records, device),
        "tiles": _tiles(count),
        "warnings": [words for words in (disturbance(records), *weaker_walls(records)) if words],
        "sentences": summary.sentences(records, groups),
        "fastest": summary.fastest(groups, names),
        "overview": summary.overview(records, anchors),
        "legend": [
            (clean(name), _swatch(slot))
            for name, slot in slots(record for record in records if timing_of(record)).items()
        ],
        "failures": sections.failures(records),
        "rooflines": _rooflines(records, device, anchors, [*moves, *moves_of_runs(rounds, records)]),
        "arrows": bool(moves or rounds),
        "optimisations": _optimisations(rounds),
        "operators": sections.operators(records, anchors, names, pasts),
        "emulated_kernels": sections.emulated_kernels(records),
        "not_run": sections.not_run(records),
    }


def _optimisations(rounds: Sequence[OptimizationRound]) -> list[dict[str, Any]]:
    """Each operator's newest optimisation: every round with what it tried and gained, and its versions."""
    found = []
    for operator in unique(one.operator for one in rounds):
        run = [one for one in rounds if one.operator == operator][-1].run
        mine = [one for one in rounds if one.run == run]
        rows = [
            {
                "number": f"{one.number}",
                "strategy": clean(one.strategy),
                "tried": clean("; ".join(item.change for item in one.tried)),
                "gain": f"{one.comparison.speedup:.2f}x ({one.comparison.outcome})"
                if one.comparison
                else "not compared",
                "decision": clean(one.decision),
                "profile": clean(one.diagnosis.bottleneck),
            }
            for one in mine
            if one.stage == ROUND
        ]
        versions = [
            {
                "name": clean(one.name),
                "change": clean(one.change),
                "seconds": units.seconds(one.seconds) if one.seconds is not None else "",
                "gain": f"{one.gain:.2f}x" if one.gain is not None else "",
                "profile": clean(one.profile),
                "next": clean(one.next.replace("`", "")),
            }
            for one in of_run(mine)
        ]
        about = f"{mine[0].implementation}, {mine[0].workload}, {mine[0].dtype}, {mine[0].device}; {mine[-1].reason}"
        found.append({"operator": clean(operator), "about": clean(about), "rounds": rows, "versions": versions})
    return found


def _anchors(names: Iterable[str]) -> dict[str, str]:
    """An anchor for each name: readable, safe, and its own."""
    anchors: dict[str, str] = {}
    for name in names:
        slug = "op-" + (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "x")
        anchors[name] = slug if slug not in anchors.values() else f"{slug}-{len(anchors)}"
    return anchors


def _group_anchors(groups: Sequence[Group]) -> list[tuple[str, Group]]:
    keys = [f"{group.operator} {group.workload} {group.dtype}" for group in groups]
    taken: dict[str, str] = {}
    for place, key in enumerate(keys):
        taken[str(place)] = "at-" + re.sub(r"[^a-z0-9]+", "-", key.lower()).strip("-")
    return [
        (anchor if list(taken.values()).index(anchor) == place else f"{anchor}-{place}", group)
        for place, (anchor, group) in enumerate(zip(taken.values(), groups, strict=True))
    ]


def _when(records: Sequence[Record]) -> str:
    times = sorted(clean(record.created_at)[:16].replace("T", " ") for record in records)
    if not times:
        return "no records"
    first, last = times[0], times[-1]
    return first if first == last else f"{first} to {last[11:] if first[:10] == last[:10] else last}"


def _tiles(count: dict[str, int]) -> list[tuple[str, str, str]]:
    return [
        (str(count["operators"]), "operators", ""),
        (str(count["implementations"]), "implementations", ""),
        (str(count["passed"]), "passed", "good" if count["passed"] else ""),
        (str(count["failed"]), "failed", "bad" if count["failed"] else ""),
        *([(str(count["refused"]), "refused", "bad")] if count["refused"] else []),
        (str(count["not run"]), "not run here", ""),
        (str(count["timed"]), "kernels timed", ""),
    ]


def _machines(records: Sequence[Record], device: DeviceSpec | None) -> list[dict[str, Any]]:
    """Each environment once: device, host, isolation, every fact."""
    by_machine: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        by_machine.setdefault((record.device, record.environment.host, record.environment.fingerprint), []).append(
            record
        )
    machines = []
    for (name, host, fingerprint), members in by_machine.items():
        isolation = unique(
            str(isolation_of_one)
            for member in members
            if (isolation_of_one := getattr(member.verdict, "isolation", ""))
        )
        rows = [
            ("device", name),
            ("host", host),
            ("environment", fingerprint),
            ("isolation", "; ".join(isolation) or "nothing was run"),
        ]
        timings = [timing for member in members if (timing := timing_of(member)) is not None]
        if timings:
            rows += [
                ("timer", ", ".join(unique(timing.timer for timing in timings))),
                ("cache", ", ".join(unique(timing.cache for timing in timings))),
            ]
            rows.append(
                (
                    "loop overhead",
                    units.seconds(max(timing.overhead_s for timing in timings))
                    + " per call at most, stated and not subtracted",
                )
            )
        facts = list(members[0].environment.facts.items())
        if device is not None and device.name == name:
            facts += [
                (
                    f"ceiling.{ceiling.name}",
                    f"{_ceiling(ceiling.value, ceiling.unit)}; {ceiling.how}; {ceiling.measured_at}",
                )
                for ceiling in device.ceilings
            ]
        machines.append(
            {
                "rows": [(key, clean(value)) for key, value in rows],
                "facts": [(clean(key), clean(value)) for key, value in sorted(facts)],
            }
        )
    return machines


def _ceiling(value: float, unit: str) -> str:
    text = (
        units.flops_per_s
        if unit.lower().startswith("flop")
        else units.bytes_per_s
        if unit.lower().startswith(("b/", "byte"))
        else units.seconds
        if unit == "s"
        else None
    )
    return text(value) if text is not None else f"{units.number(value)} {unit}"


def _swatch(slot: int) -> str:
    return svg.picture(14, 14, "", svg.marker(slot, 7, 7, 5, f"b{slot}"))


def _rooflines(
    records: Sequence[Record], device: DeviceSpec | None, found: Sequence[tuple[str, Group]], moves: Sequence[Move]
) -> list[dict[str, Any]]:
    anchors = {record.id: anchor for anchor, group in found for record in group.records}
    colours = slots(records)
    names = unique(record.device for record in records)
    pictures = []
    for name in names:
        mine = [record for record in records if record.device == name]
        spec = device if device is not None and (len(names) == 1 or device.name == name) else None
        operators = {record.operator for record in mine}
        picture = roofline(mine, spec, colours, anchors, [move for move in moves if move.operator in operators])
        if not picture:
            continue
        plain = sum(timing_of(record) is not None and record.cost.intensity <= 0 for record in mine)
        notes = (
            [f"{units.plural(plain, 'timed kernel')} without arithmetic cannot stand on this picture."] if plain else []
        )
        if spec is None:
            notes.append("No description of this device was given, so no roofs are drawn. See: opforge machine")
        elif any(roof.nominal for roof in roofs(spec, unique(record.dtype for record in mine))):
            notes.append(
                "Dashed roofs are the vendor's figures, not measured. Measure this machine with: opforge machine"
            )
        pictures.append(
            {"device": clean(name), "picture": picture, "notes": notes, "of": f"{name}" if len(names) > 1 else ""}
        )
    return pictures
