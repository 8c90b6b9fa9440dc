"""Ratios of times that were taken turn about, on a machine whose speed changes under both."""

from opforge.core.evidence import paired_times
from opforge.core.evidence.timing import Round, Timing


def taken(times: list[float], *, waited_s: float = 0.0, rounds: bool = True) -> Timing:
    turn = Round(samples=2, wall_s=0.04, own_s=0.04, waited_s=waited_s, voluntary=0, involuntary=0)
    return Timing(
        samples_s=tuple(time for time in times for _ in range(2)),
        batch=1,
        timer="host",
        cache="warm",
        overhead_s=0.0,
        conditions=(),
        rounds=(turn,) * len(times) if rounds else (),
    )


DRIFT = [1e-3 * (1 + at / 10) for at in range(16)]
"""A machine that becomes 2.5 times as slow while it is looked at."""


def test_a_ratio_is_known_where_both_drift_together() -> None:
    one, other = taken([2 * time for time in DRIFT]), taken(DRIFT)
    assert not one.steady and not other.steady
    assert paired_times.certain(one, other)
    assert abs(paired_times.ratio(one, other) - 2) < 1e-12
    # the same when one of them stopped at its half: medians would say 2.75
    short = taken(DRIFT[:8])
    assert abs(paired_times.ratio(one, short) - 2) < 1e-12
    assert one.median_s / short.median_s > 2.5


def test_no_ratio_where_each_goes_its_own_way() -> None:
    assert not paired_times.certain(taken(DRIFT), taken(DRIFT[::-1]))


def test_no_ratio_by_turns_where_they_are_few_or_not_kept() -> None:
    assert not paired_times.certain(taken(DRIFT[:7]), taken(DRIFT[:7]))
    assert not paired_times.certain(taken(DRIFT, rounds=False), taken(DRIFT, rounds=False))


def test_no_ratio_where_something_else_had_the_processors() -> None:
    assert not paired_times.certain(taken(DRIFT, waited_s=0.02), taken(DRIFT))
