"""Records in words: what a verdict means, what a row must confess, and how text from elsewhere is made safe to show."""

from __future__ import annotations

import math

from opforge.core.definition.operator import Case
from opforge.core.evidence.record import Record
from opforge.core.evidence.verdict import (
    Broken,
    Crash,
    Inaccurate,
    LibraryFallback,
    Mismatch,
    Pass,
    Timeout,
    Unsupported,
    Verdict,
    may_be_timed,
)
from opforge.core.language import units
from opforge.core.language.printed import printable
from opforge.report.view import of_roof, timing_of

MOST = 4000
"""So many characters of one text are shown: a record from elsewhere may hold megabytes."""
CELL = 100
"""So many of a text in a table's cell."""
FEW_SAMPLES = 10
NOTABLE_OVERHEAD = 0.05

COMPILER_LATE = (
    ": its compiler did not end; split the source into smaller kernels, or unroll and instantiate less, and look at "
    "what it includes"
)
INTERPRETED = "verified by interpreter, not timed"
VERIFIED = "verified, not timed"


def clean(text: str) -> str:
    """`text` on one line, with characters that steer a terminal, reorder a line or cannot be printed shown as escapes.
    Of more than MOST characters the middle is left out.

    >>> clean("a\\x1b[31mb  c\\nd")
    'a\\\\x1b[31mb c d'
    """
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in " ".join(short(text, MOST).split())
    )


def clean_lines(text: str) -> str:
    """As `clean`, line by line, spaces kept: for what a process wrote to stderr."""
    return printable(text)


def printed_lines(record: Record) -> list[str]:
    """What an implementation printed while it was verified, each line behind a bar that says that it is not opforge's;
    [] where it printed nothing.
    """
    said = record.printed
    if said is None:
        return []
    more = [f"… {units.plural(said.more_lines, 'more line')}"] if said.more_lines else []
    # records may come from elsewhere: what they hold is made safe again
    return [f"| {line}" for line in printable(said.text).split("\n")] + more


def short(text: str, limit: int) -> str:
    """At most `limit` characters, the middle left out.

    >>> short("abcdefghij", 7)
    'abc…hij'
    """
    if len(text) <= limit:
        return text
    head = (limit - 1) // 2
    return f"{text[: limit - 1 - head]}…{text[len(text) - head :]}"


def saved(record: Record) -> str:
    """What a fused operator does not move, to stand after what it does: " (67.1 MB less than pass by pass)", or ""."""
    return f" ({units.size(record.cost.bytes_saved)} less than pass by pass)" if record.cost.bytes_saved else ""


def describe(verdict: Verdict) -> str:
    """One sentence for a verdict, without a full stop, safe for a terminal."""
    match verdict:
        case Pass():
            left_out = f", {units.plural(len(verdict.not_taken), 'case')} not taken" if verdict.not_taken else ""
            return (
                f"agrees with the oracle in {units.plural(len(verdict.checked), 'case')}, worst error "
                f"{error_share(verdict.worst_ratio)} of its bound{left_out}"
            )
        case Inaccurate():
            return clean(f"a baseline, not accurate: {verdict.reason}; {describe(verdict.found)}")
        case Mismatch(law=str(law)):
            return clean(f"wrong in case {verdict.case.name}: the law {law} does not hold: {verdict.cause}")
        case Mismatch():
            return clean(
                f"wrong in case {verdict.case.name}: {verdict.output}[{index(verdict.index)}] is "
                f"{units.number(verdict.actual)}, "
                f"expected {units.number(verdict.expected)} within {units.number(verdict.tolerance)}; {verdict.cause}"
            )
        case Broken():
            return clean(f"broke the contract{_in(verdict.case)}: {verdict.reason}")
        case Crash():
            return clean(f"crashed{_in(verdict.case)} with {ended(verdict.status)}{_last_line(verdict.stderr)}")
        case Timeout():
            doing = COMPILER_LATE if verdict.compiling else ""
            return clean(f"gave no answer{_in(verdict.case)} within {units.seconds(verdict.limit_s)}{doing}")
        case LibraryFallback():
            return clean(f"refused by policy: {verdict.reason}")
        case Unsupported():
            return clean(f"not run: {verdict.reason}")


def notes(record: Record) -> tuple[str, ...]:
    """What this row must confess, each with what to do about it. Empty for a row that needs no excuse."""
    if record.timing is not None and not may_be_timed(record.verdict, record.backend):
        return ("a time was recorded without a Pass; it is not shown: verify first",)
    timing = timing_of(record)
    if timing is None:
        return (
            ("not every sample is a positive number of seconds; the time is not shown: measure again",)
            if record.timing is not None
            else ()
        )
    lines = [f"suspect: {timing.suspect}"] if timing.suspect is not None else []
    lines += timing.unsteady
    count = len(timing.samples_s)
    if count < FEW_SAMPLES:
        lines.append(
            f"only {units.plural(count, 'sample')}: the interval means little; measure again with "
            f"{math.ceil(3 * FEW_SAMPLES / count)} times the --budget"
        )
    share = timing.overhead_s / timing.median_s
    if not share <= NOTABLE_OVERHEAD:
        lines.append(f"the timing loop itself takes {units.percent(share)} of this; prefer a larger workload")
    fraction = of_roof(record)
    if fraction is not None and fraction > 1.0 and timing.suspect is None:
        lines.append(
            f"{units.percent(fraction)} of peak: data stayed in a cache, or the ceiling was measured too low; "
            "renew it on a quiet machine with: opforge machine --again"
        )
    return tuple(lines)


def untimed(record: Record) -> str:
    """Why a Pass has no time: what emulated the device.

    The environment may say so (`execution_mode_of`). Where it does not: Triton compiles for accelerators only, so
    on a machine whose facts name none, its interpreter did the work.
    """
    facts = record.environment.facts
    how = record.environment.execution_mode_of(record.backend)
    if not how and record.backend == "triton" and facts and not any(name.startswith("device.") for name in facts):
        how = "interpreter"
    if "interpret" in how.lower():
        return INTERPRETED
    return clean(f"verified by {how}, not timed") if how and not how.lower().startswith("native") else VERIFIED


def verdict_word(record: Record) -> str:
    """The verdict in a word or two, for a table's cell."""
    match record.verdict:
        case Pass() if timing_of(record) is None:
            return untimed(record)
        case Unsupported():
            return "not run"
        case Inaccurate():
            return "not accurate"
        case verdict:
            return type(verdict).__name__


def ended(status: int) -> str:
    """How a process ended.

    >>> ended(-11), ended(3)
    ('SIGSEGV', 'exit status 3')
    """
    import signal

    if status < 0:
        try:
            return signal.Signals(-status).name
        except ValueError:
            return f"signal {-status}"
    return f"exit status {status}"


def index(position: tuple[int, ...]) -> str:
    """An element's index: "3, 128"; for a scalar, "…"."""
    return ", ".join(str(part) for part in position) or "…"


def axes(record: Record) -> str:
    """The axes and scalars of a record: "lead=12x256, cols=256"."""
    return clean(", ".join(f"{name}={_extent(value)}" for name, value in {**record.axes, **record.scalars}.items()))


def case_words(case: Case) -> str:
    """What a case is: axes, and whatever is not the usual."""
    parts = [f"{name}={_extent(value)}" for name, value in {**case.axes, **case.scalars}.items()]
    parts += [f"{case.distribution} values"] if case.distribution != "normal" else []
    parts += [f"{case.layout} layout"] if case.layout != "contiguous" else []
    parts += ["the other pattern around tensors"] if case.pattern else []
    parts += [f"seed {case.seed}"] if case.seed is not None else []
    return clean(", ".join(parts))


def error_share(value: float) -> str:
    """|error| / bound as a share; a NaN is said, never hidden."""
    return units.percent(value) if math.isfinite(value) else "not a number"


def _extent(value: object) -> str:
    return ("x".join(str(extent) for extent in value) or "()") if isinstance(value, tuple) else str(value)


def _in(case: Case | None) -> str:
    return f" in case {case.name}" if case is not None else ""


def _last_line(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return f": {short(lines[-1], 160)}" if lines else ""
