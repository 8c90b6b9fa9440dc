"""What a language model is told of a candidate that failed: first wrong element, likely cause, compiler's words."""

from __future__ import annotations

from opforge.core.evidence.optimization import Tried
from opforge.core.evidence.verdict import Broken, Crash, Mismatch, Timeout, Unsupported
from opforge.diagnose.refusals import refusal_of
from opforge.report.record_text import describe

LONGEST = 3000
"""Letters of a compiler's words: the first error stands early in them."""


def feedback(tried: Tried, operator: str, dtype: str) -> str:
    """The feedback on a candidate, in lines."""
    verdict = tried.verdict
    lines: list[str] = []
    if verdict is None:
        return f"It was not run. {tried.reason}"
    lines.append(describe(verdict))
    if isinstance(verdict, Mismatch):
        axes = ", ".join(f"{name}={size}" for name, size in verdict.case.axes.items())
        lines += [
            f"case {verdict.case.name} ({axes}; {verdict.case.layout}; values {verdict.case.distribution}), seed "
            f"{verdict.case.seed}, {verdict.dtype}",
            f"first wrong element: {verdict.output}{list(verdict.index)} is {verdict.actual!r}, expected "
            f"{verdict.expected!r} within {verdict.tolerance:.3g}; {verdict.wrong} of {verdict.total} are wrong",
            f"likely cause: {verdict.cause}",
            f"seen again with: opforge verify {operator} --dtype {dtype}",
        ]
    elif isinstance(verdict, Crash):
        lines.append(f"the process ended: {str(getattr(verdict, 'stderr', ''))[-LONGEST:]}")
    elif isinstance(verdict, Timeout):
        lines.append(f"no answer within {verdict.limit_s:g} s")
    elif isinstance(verdict, Broken | Unsupported):
        lines.append(str(verdict.reason)[:LONGEST])
    if (known := refusal_of(verdict)) is not None:
        lines.append(f"likely cause: {known.cause}. Remedy: {known.remedy}.")
    return "\n".join(lines)
