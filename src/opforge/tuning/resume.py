"""Go on with a search that was interrupted: what its journal says counts, and the best of it is bound again."""

from __future__ import annotations

from opforge.machine import detect
from opforge.tuning.finalists import attempt_at
from opforge.tuning.job import Job, Passed
from opforge.tuning.journal import Journal, journal_file
from opforge.tuning.outcomes import TIMED
from opforge.tuning.space import Space
from opforge.tuning.strategies import Measured, place_of


def resume(job: Job, space: Space, finalists: list[Passed]) -> None:
    """Open the space's journal and tell the search what it holds. The default and the best point are bound once more,
    because the final and all that follow are held against them; the others are not measured again.
    """
    implementation = space.implementation
    device, weights = detect(job.options.device).name, job.options.weights
    file = journal_file(job.operator, implementation, job.workload, job.dtype, device, job.environment, weights)
    if job.options.fresh:
        file.unlink(missing_ok=True)
    job.refused += space.refused
    space.journal = Journal(None if space.one_point else file)
    timed: dict[str, float] = {}
    for entry in space.journal.entries:
        if place_of(space.search.strategy.legal, entry.config) is None:
            continue
        space.search.recall(entry.config, entry.taught)
        job.counts[entry.outcome] += 1
        job.resumed += 1
        if entry.record is not None:
            # the end may have come between the journal and the store; what is there already is passed over
            job.add(entry.record)
            if entry.record.timing is not None:
                cost = job.costs(entry.record.timing, entry.record.verdict)
                job.tried.append((implementation.name, entry.config, cost))
        if entry.code_sha256:
            space.seen.setdefault(entry.code_sha256, entry.config)
        if entry.outcome == TIMED and isinstance(entry.taught, Measured):
            timed[str(entry.config)] = entry.taught.seconds
    for config in space.journal.unended:
        space.search.defer(config)
    best = space.search.strategy.best
    if not timed or best is None:
        return
    for config in dict.fromkeys((implementation.default, best)):
        if str(config) not in timed and config != best:
            continue
        passed = attempt_at(job, implementation, config)
        if passed is not None:
            finalists.append(passed)
            space.incumbent, space.reference_s = passed, timed.get(str(config), passed.seconds)
