"""The page of a verification: how the error is distributed, where it is worst, how it grows, and what failed
and why.
"""

from __future__ import annotations

import importlib.resources
import math
from collections.abc import Sequence
from typing import Any

from opforge.core.evidence.record import Record
from opforge.core.evidence.verdict import REFUSED, Checked, Crash, Inaccurate, Metrics, Mismatch, Pass
from opforge.core.language import units
from opforge.report import sections, svg
from opforge.report.error_words import error_words
from opforge.report.record_text import (
    case_words,
    clean,
    clean_lines,
    describe,
    error_share,
    index,
    printed_lines,
    verdict_word,
)
from opforge.report.tabular import Grid, Line
from opforge.report.view import unique

WIDTH, HEIGHT = 520.0, 230.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 470.0, 16.0, 190.0
EDGES = ("1e-6", "1e-5", "1e-4", "1e-3", "0.01", "0.1", "1", "10", "∞")
"""Upper edges of the bins of Metrics.histogram."""

BOUND_BIN = 7
"""Bins from here on lie beyond the bound."""


def verification_page(records: Sequence[Record], *, title: str) -> str:
    """A page of HTML that needs nothing else, for records of verification. The same records give the same page."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("opforge.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # pictures were escaped where they were drawn; nothing else on the page is taken for markup
    environment.filters["drawn"] = Markup
    folder = importlib.resources.files("opforge.report").joinpath("templates")
    style = "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in ("report.css", "verification.css"))
    run = [record for record in records if isinstance(record.verdict, (Pass, *REFUSED))]
    return environment.get_template("verification.html.j2").render(
        style=Markup(style),
        title=clean(title),
        when=clean(min((record.created_at for record in records), default="no records"))[:16].replace("T", " "),
        device=clean(", ".join(unique(record.device for record in records))),
        isolation=clean("; ".join(unique(str(getattr(record.verdict, "isolation", "")) for record in run)))
        or "nothing was run",
        tiles=_tiles(records),
        kernels=[_kernel(record, f"k{place}") for place, record in enumerate(run)],
        not_run=sections.not_run(records),
    )


def verification_rows(records: Sequence[Record]) -> Grid:
    """One line per implementation and dtype: the verdict, how much was checked, how close to the bound, what is
    stated.
    """
    columns = (
        "operator",
        "dtype",
        "implementation",
        "verdict",
        "cases",
        "hidden",
        "error/bound",
        "max |error|",
        "max ulp",
        "deterministic",
        "batch invariant",
    )
    lines = []
    for record in records:
        verdict = record.verdict
        style = "bold red" if isinstance(verdict, REFUSED) else "green" if isinstance(verdict, Pass) else "dim"
        cells = [
            clean(record.operator),
            clean(record.dtype),
            clean(record.implementation),
            verdict_word(record)
            if isinstance(verdict, (Inaccurate, *REFUSED))
            else "Pass"
            if isinstance(verdict, Pass)
            else "not run",
        ]
        if isinstance(verdict, Pass):
            ulp = max((m.max_ulp for case in verdict.checked for m in case.metrics), default=0.0)
            hidden = sum(case.case.name.startswith(("hidden_", "small_hidden_")) for case in verdict.checked)
            cells += [
                str(len(verdict.checked)),
                str(hidden),
                error_words(verdict, record.dtype),
                units.number(verdict.max_abs),
                units.number(ulp),
            ]
            cells += [_word(verdict.states("deterministic")), _word(verdict.states("batch_invariant"))]
        lines.append(
            Line(
                cells=(*cells, *([""] * (len(columns) - len(cells)))),
                styles=("", "", "", style, *([""] * (len(columns) - 4))),
            )
        )
    return Grid(columns=columns, numeric=frozenset(columns[4:9]), rows=tuple(lines))


def _word(holds: bool | None) -> str:
    return {True: "yes", False: "no", None: "not asked"}[holds]


def _tiles(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    passed = [record for record in records if isinstance(record.verdict, Pass)]
    failed = sum(isinstance(record.verdict, REFUSED) for record in records)
    inaccurate = sum(isinstance(record.verdict, Inaccurate) for record in records)
    cases = sum(len(record.verdict.checked) for record in passed if isinstance(record.verdict, Pass))
    worst = max((record.verdict.worst_ratio for record in passed if isinstance(record.verdict, Pass)), default=0.0)
    return [
        (str(len(passed)), "kernels passed", "good" if passed else ""),
        (str(failed), "failed", "bad" if failed else ""),
        *([(str(inaccurate), "baselines, not accurate", "")] if inaccurate else []),
        (str(len(records) - len(passed) - failed - inaccurate), "not run here", ""),
        (str(cases), "cases agreed with the oracle", ""),
        (error_share(worst) if passed else "–", "of its bound, the worst error that passed", ""),
    ]


def _kernel(record: Record, anchor: str) -> dict[str, Any]:
    verdict = record.verdict
    checked = verdict.checked if isinstance(verdict, Pass) else ()
    metrics = [metric for case in checked for metric in case.metrics]
    if isinstance(verdict, Mismatch):
        metrics = [metric for metric in (verdict.first_metrics or verdict.metrics,) if metric is not None]
    shown = verdict.window if isinstance(verdict, Mismatch) else verdict.worst if isinstance(verdict, Pass) else None
    return {
        "anchor": anchor,
        "operator": clean(record.operator),
        "name": clean(record.implementation),
        "dtype": clean(record.dtype),
        "kind": type(verdict).__name__,
        "tone": sections.tone(record),
        # what a Mismatch has to say stands in its rows of evidence
        "sentence": "" if isinstance(verdict, Mismatch) else f"{describe(verdict)}.",
        "evidence": sections.evidence(record) if isinstance(verdict, REFUSED) else [],
        "stderr": clean_lines(verdict.stderr[-4000:]).strip() if isinstance(verdict, Crash) else "",
        "printed": "\n".join(printed_lines(record)),
        "distribution": distribution(metrics),
        "growth": growth(checked),
        "window": sections.window(shown) if shown is not None else None,
        "worst": _worst_words(metrics)
        + (
            ", in the case that failed first"
            if isinstance(verdict, Mismatch) and verdict.first_metrics is not None
            else ""
        ),
        "figures": _figures(metrics),
        "statements": _statements(verdict) if isinstance(verdict, Pass) else [],
        "cases": [_case(case) for case in checked],
        "not_taken": [(clean(name), clean(reason)) for name, reason in verdict.not_taken]
        if isinstance(verdict, Pass)
        else [],
        "replay": f"opforge verify --replay {clean(record.id)[:12]}",
    }


def _statements(verdict: Pass) -> list[tuple[str, str, str, str]]:
    tones = {True: "good", False: "bad", None: "idle"}
    return [
        (
            clean(statement.name.replace("_", " ")),
            _word(statement.holds),
            clean(statement.detail),
            tones[statement.holds],
        )
        for statement in verdict.statements
    ]


def _worst_words(metrics: Sequence[Metrics]) -> str:
    found = max(
        (m for m in metrics if m.elements),
        key=lambda m: m.worst_ratio if not math.isnan(m.worst_ratio) else math.inf,
        default=None,
    )
    if found is None:
        return ""
    return clean(
        f"{found.output}[{index(found.worst_index)}] is {units.number(found.worst_actual)}, the oracle says "
        f"{units.number(found.worst_expected)}, "
        f"the bound is {units.number(found.worst_bound)}"
    )


def _figures(metrics: Sequence[Metrics]) -> list[tuple[str, str]]:
    """Every metric, over all cases: the worst of each."""
    kept = [item for item in metrics if item.elements]
    if not kept:
        return []
    finite_sqnr = [item.sqnr_db for item in kept if math.isfinite(item.sqnr_db)]
    return [
        ("max |error|", units.number(max(m.max_abs for m in kept))),
        ("mean |error|", units.number(max(m.mean_abs for m in kept))),
        ("max relative", units.number(max(m.max_rel for m in kept))),
        ("L2 relative", units.number(max(m.l2_rel for m in kept))),
        (
            "p50, p90, p99 of |error|",
            ", ".join(units.number(max(m.quantiles_abs[place] for m in kept)) for place in range(3)),
        ),
        ("max ulp", units.number(max(m.max_ulp for m in kept))),
        ("least cosine", f"{min(m.cosine for m in kept):.9g}"),
        ("least SQNR", f"{min(finite_sqnr):.1f} dB" if finite_sqnr else "no error at all"),
        ("KL divergence", units.number(max(m.kl for m in kept))),
    ]


def _case(checked: Checked) -> dict[str, str]:
    worst = max((m.worst_ratio for m in checked.metrics), default=0.0)
    return {
        "name": clean(checked.case.name),
        "why": clean(checked.case.why),
        "inputs": case_words(checked.case),
        "worst": error_share(worst),
        "max_abs": units.number(max((m.max_abs for m in checked.metrics), default=0.0)),
    }


def distribution(metrics: Sequence[Metrics]) -> str:
    """Histogram (bars, logarithmic counts) and cumulative share (line) of |error| / bound; "" when nothing was
    counted.
    """
    bins = len(EDGES)
    totals = [
        sum(max(0, item.histogram[place]) for item in metrics if len(item.histogram) == bins) for place in range(bins)
    ]
    count = sum(totals)
    if not count:
        return ""
    step = (RIGHT - LEFT) / bins
    tallest = math.log10(1 + max(totals))
    height = svg.linear(0.0, tallest, BOTTOM, TOP)
    share = svg.linear(0.0, 1.0, BOTTOM, TOP)
    parts = [
        svg.line(LEFT, share(value), RIGHT, share(value), "axis" if value == 0 else "grid")
        for value in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    parts += [svg.text(f"{value:.0%}", RIGHT + 6, share(value) + 4, "tick") for value in (0.0, 0.5, 1.0)]
    for power in range(math.ceil(tallest) + 1):
        if math.log10(1 + 10.0**power) <= tallest:
            parts.append(
                svg.text(
                    f"1e{power}" if power > 3 else str(10**power),
                    LEFT - 6,
                    height(math.log10(1 + 10.0**power)) + 4,
                    "tick",
                    text_anchor="end",
                )
            )
    below, path = 0, []
    for place, number in enumerate(totals):
        x = LEFT + step * place
        top = height(math.log10(1 + number))
        below += number
        tip = svg.title(
            f"|error| / bound up to {EDGES[place]}: {number} of {count} elements, {below / count:.4%} up to here"
        )
        bar = (
            svg.element(
                "rect",
                x=x + 2,
                y=top,
                width=step - 4,
                height=BOTTOM - top,
                class_="over" if place >= BOUND_BIN else "under",
            )
            if number
            else ""
        )
        hit = svg.element("rect", x=x, y=TOP, width=step, height=BOTTOM - TOP, class_="row-hit")
        parts.append(svg.element("g", tip, hit, bar))
        path.append(f"{svg.coordinate(x + step)} {svg.coordinate(share(below / count))}")
        parts.append(svg.text(EDGES[place], x + step, BOTTOM + 15, "tick", text_anchor="middle"))
    parts.append(
        svg.element("path", d=f"M{svg.coordinate(LEFT)} {svg.coordinate(BOTTOM)}L" + "L".join(path), class_="cdf")
    )
    edge = LEFT + step * BOUND_BIN
    parts += [svg.line(edge, TOP - 8, edge, BOTTOM, "bound"), svg.text("bound", edge + 4, TOP - 5, "roof-label")]
    parts.append(svg.text("|error| / bound, up to", (LEFT + RIGHT) / 2, BOTTOM + 32, "tick", text_anchor="middle"))
    return svg.picture(WIDTH, HEIGHT, f"Histogram and cumulative share of error over bound, {count} elements", *parts)


def growth(checked: Sequence[Checked]) -> str:
    """One mark per case and output: the worst error over its bound against the output's number of elements; "" for
    fewer than two.
    """
    points = [
        (
            item.elements,
            max(1e-7, item.worst_ratio),
            f"{case.case.name}: {item.output}, {units.plural(item.elements, 'element')}, "
            f"{error_share(item.worst_ratio)} of the bound",
        )
        for case in checked
        for item in case.metrics
        if item.elements and math.isfinite(item.worst_ratio)
    ]
    if len(points) < 2:
        return ""
    most = max(10.0, 10.0 ** math.ceil(math.log10(max(size for size, _, _ in points))))
    across = svg.logarithmic(1.0, most, LEFT + 8, RIGHT)
    up = svg.logarithmic(1e-7, 10.0, BOTTOM, TOP)
    parts = []
    for value in svg.decades(1e-7, 10.0):
        parts.append(svg.line(LEFT, up(value), RIGHT, up(value), "axis" if value < 2e-7 else "grid"))
        if round(math.log10(value)) % 2 == 0 or value < 2e-7:
            parts.append(
                svg.text(
                    "none" if value < 2e-7 else f"1e{round(math.log10(value))}" if value < 1e-3 else f"{value:g}",
                    LEFT - 6,
                    up(value) + 4,
                    "tick",
                    text_anchor="end",
                )
            )
    for value in svg.decades(1.0, most):
        parts.append(
            svg.text(
                f"{value:g}" if value < 1e4 else f"1e{round(math.log10(value))}",
                across(value),
                BOTTOM + 15,
                "tick",
                text_anchor="middle",
            )
        )
    parts += [svg.line(LEFT, up(1.0), RIGHT, up(1.0), "bound"), svg.text("bound", RIGHT + 4, up(1.0) + 4, "roof-label")]
    parts += [
        svg.marker(0, across(size), up(ratio), 4, "mark b4", svg.title(clean(tip))) for size, ratio, tip in points
    ]
    parts.append(
        svg.text(
            "elements of the output; each mark is one case",
            (LEFT + RIGHT) / 2,
            BOTTOM + 32,
            "tick",
            text_anchor="middle",
        )
    )
    return svg.picture(WIDTH, HEIGHT, "Worst error over bound against size, one mark per case", *parts)
