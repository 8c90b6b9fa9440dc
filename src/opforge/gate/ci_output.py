"""A gate's report as JUnit XML for CI and as Markdown for a pull request."""

from __future__ import annotations

import xml.etree.ElementTree as xml

from opforge.core.language import units
from opforge.gate.check import FINE, REGRESSION, SKIPPED, UNSURE_STATE, CaseResult, Report

WORDS = {0: "fine", 1: "regression", 4: "unsure"}


def junit(report: Report) -> str:
    """JUnit XML: a regression is a failure, an unsure case an error, an unchanged one skipped."""
    suite = xml.Element(
        "testsuite",
        name=f"opforge check against {_clean(report.baseline)}",
        tests=str(len(report.findings)),
        failures=str(report.count(REGRESSION)),
        errors=str(report.count(UNSURE_STATE)),
        skipped=str(report.count(SKIPPED)),
    )
    for finding in report.findings:
        key = finding.key
        spent = finding.comparison.spent_s if finding.comparison is not None else 0.0
        case = xml.SubElement(
            suite,
            "testcase",
            classname=_clean(f"{key.operator}.{key.implementation}"),
            name=_clean(f"{key.workload} {key.dtype}"),
            time=f"{spent:.3f}",
        )
        tag = {REGRESSION: "failure", UNSURE_STATE: "error", SKIPPED: "skipped"}.get(finding.state)
        if tag is not None:
            xml.SubElement(case, tag, message=_clean(finding.words))
    return '<?xml version="1.0" encoding="utf-8"?>\n' + xml.tostring(suite, encoding="unicode") + "\n"


def markdown(report: Report) -> str:
    """A table for a pull request: what regressed and what is unsure first, then the rest, folded away."""
    counts = ", ".join(
        f"{report.count(state)} {state}" for state in (REGRESSION, UNSURE_STATE, FINE, SKIPPED) if report.count(state)
    )
    lines = [
        f"### opforge check against `{_cell(report.baseline)}`: {WORDS[report.exit_code]}",
        "",
        counts or "nothing to check",
        "",
    ]
    lines += [f"- {_cell(note)}" for note in report.notes]
    notable = [finding for finding in report.findings if finding.state in (REGRESSION, UNSURE_STATE)]
    if notable:
        lines += ["", *_table(notable)]
    rest = [finding for finding in report.findings if finding not in notable]
    if rest:
        lines += [
            "",
            f"<details><summary>{units.plural(len(rest), 'case')} in order</summary>",
            "",
            *_table(rest),
            "",
            "</details>",
        ]
    return "\n".join(lines) + "\n"


def _table(findings: list[CaseResult]) -> list[str]:
    head = ["| case | state | time ratio | what was found |", "| --- | --- | ---: | --- |"]
    return head + [
        f"| {_cell(str(finding.key))} | {finding.state} | {_ratio(finding)} | {_cell(finding.words)} |"
        for finding in findings
    ]


def _ratio(finding: CaseResult) -> str:
    comparison = finding.comparison
    return "" if comparison is None else f"{comparison.ratio:.3f} [{comparison.low:.3f}, {comparison.high:.3f}]"


def _clean(text: str) -> str:
    """Without the control characters that XML may not hold."""
    return "".join(char if char.isprintable() else " " for char in text)


def _cell(text: str) -> str:
    return _clean(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
