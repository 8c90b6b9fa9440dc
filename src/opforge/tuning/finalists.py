"""Points that live on until the final: bound again where they were found before, or given up for a while."""

from __future__ import annotations

from opforge.core.definition.implementation import Config, Implementation
from opforge.trial import leave
from opforge.tuning.job import Job, Passed, attempt
from opforge.tuning.room import NoRoom
from opforge.tuning.workers import SearchWorkers


def attempt_at(job: Job, implementation: Implementation, config: Config) -> Passed | None:
    """A point that was found before, bound and timed again; None where it does not pass any more, or found no room:
    then nothing may take its place (Job.untried).
    """
    try:
        return attempt(job, implementation, config, None).passed
    except NoRoom as error:
        job.untried[implementation.name] = f"the device had no room for it ({error})"
        return None


def park(job: Job, item: Passed) -> None:
    """Give the process of a point that is far behind to others, with its memory."""
    if item.parked:
        return
    item.parked = True
    leave(job.setting, [item.ready], [item.ready])
    if isinstance(job.setting.pool, SearchWorkers):
        job.setting.pool.shed(item.implementation.name)


def revived(job: Job, item: Passed, finalists: list[Passed]) -> Passed | None:
    """The point, bound again where it was parked, in its place among the finalists; None where it does not pass any
    more.
    """
    if not item.parked:
        return item
    passed = attempt_at(job, item.implementation, item.config)
    if passed is not None:
        finalists[finalists.index(item)] = passed
    return passed
