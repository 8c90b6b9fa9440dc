"""After an upgrade: the winner of a former search and those that came next are verified and timed again, nothing else.

A new compiler or driver seldom turns a space around, and often moves the first few. A search of the whole space costs
minutes to hours, this some points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opforge.core.definition.implementation import Config, Implementation
from opforge.core.evidence.record import Record
from opforge.core.language import units
from opforge.machine import detect
from opforge.registry.tuned_choices import Chosen
from opforge.trial import leave
from opforge.tuning.final import former_choice, hold_final
from opforge.tuning.finalists import attempt_at
from opforge.tuning.job import Job
from opforge.tuning.outcomes import FAILED, TIMED, Tuned, TuneOptions
from opforge.tuning.space import eligible

RUNNERS_UP = 3
"""Besides the winner and the defaults: the fastest other points on record."""


def requalify(job: Job, earlier: Sequence[Record], write: bool) -> Tuned | None:
    """The winner, the runners-up on record and the default of each of their implementations, interleaved; the fastest
    that passes every case is kept. None where nothing had been chosen for this workload and dtype.
    """
    before = former_choice(job)
    if before is None:
        return None
    finalists = job.finalists
    try:
        for implementation, config in contenders(job, before, earlier):
            passed = attempt_at(job, implementation, config)
            job.counts[TIMED if passed else FAILED] += 1
            if passed is not None:
                finalists.append(passed)
        outcome = hold_final(job, finalists, write)
    finally:
        leave(job.setting, [item.ready for item in finalists if not item.parked])
    return replace(outcome, why=f"{moved(job, before, outcome, earlier)}; {outcome.why}")


def contenders(job: Job, before: Chosen, earlier: Sequence[Record]) -> list[tuple[Implementation, Config]]:
    """Whom to try: the winner, the fastest others on record for this workload, dtype and device, then the defaults."""
    options = TuneOptions(device=job.options.device)
    known = {item.name: item for item in eligible(job.registry, job.operator, job.workload, job.dtype, options)}
    device = detect(job.options.device).name
    fastest: dict[tuple[str, str], tuple[float, Config]] = {}
    for record in earlier:
        if record.timing is None or record.implementation not in known or record.device != device:
            continue
        if (record.dtype, dict(record.axes)) != (job.dtype, dict(job.workload.axes)):
            continue
        key = (record.implementation, str(record.config))
        if key not in fastest or record.timing.median_s < fastest[key][0]:
            fastest[key] = (record.timing.median_s, record.config)
    order = sorted(fastest, key=lambda key: fastest[key][0])
    others = [(name, fastest[name, text][1]) for name, text in order]
    winner = (before.implementation, before.config)
    chosen = [winner, *[item for item in others if not _same(item, winner)][:RUNNERS_UP]]
    chosen += [(name, known[name].default) for name in dict.fromkeys(name for name, _ in chosen) if name in known]
    unique: list[tuple[str, Config]] = []
    for item in chosen:
        fits = item[0] in known and set(item[1].as_dict()) == set(known[item[0]].default.as_dict())
        # a winner of another version of the source may have parameters that are no more
        if fits and not any(_same(item, other) for other in unique):
            unique.append(item)
    return [(known[name], config) for name, config in unique]


def moved(job: Job, before: Chosen, outcome: Tuned, earlier: Sequence[Record]) -> str:
    """What changed, in words: who was chosen, who is, and how its time went."""
    now = outcome.record
    was = f"{before.implementation} [{before.config}]"
    if now is None or now.timing is None:
        return f"was {was}, which does not pass any more"
    same = _same((now.implementation, now.config), (before.implementation, before.config))
    old = next((item for item in earlier if item.id == before.record and item.timing is not None), None)
    if old is None or old.timing is None:
        return f"{was} stays" if same else f"was {was}"
    then_s = old.timing.median_s
    times = units.ratio(now.timing.median_s / then_s)
    if same:
        return f"{was} stays, at {times} its former {units.seconds(then_s)}"
    return f"was {was}; the new one takes {times} the former {units.seconds(then_s)}"


def _same(one: tuple[str, Config], other: tuple[str, Config]) -> bool:
    return one[0] == other[0] and one[1].as_dict() == other[1].as_dict()
