"""The figures that say whether verdicts can be trusted, on smaller numbers; `make trust` has them in full."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "trust.py"
spec = importlib.util.spec_from_file_location("opforge_trust", SCRIPT)
trust = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = trust
spec.loader.exec_module(trust)


def figures(name):
    pytest.importorskip("numpy")
    found = list(trust.SECTIONS[name](trust.QUICK))
    short = [f"{figure.name}: {figure.found}, wanted {figure.wanted}" for figure in found if not figure.holds]
    assert not short, "\n".join(short)


@pytest.mark.parametrize("name", ["impossible", "histories"])
def test_quick_figures(name):
    """Simulated, the same on every machine."""
    figures(name)


@pytest.mark.slow
def test_honest_times_are_not_called_suspect_on_a_busy_machine():
    """Ceilings that were measured while others had the processors accused whoever was faster later."""
    figures("suspect")


@pytest.mark.campaign
@pytest.mark.parametrize("name", ["aa", "workers", "slower", "gate", "store", "cache", "fuzz", "million"])
def test_measured_figures(name):
    """Measured here: no alarm on identical code, real slow-downs found, nothing lost, nothing that ends in a
    traceback.
    """
    pytest.importorskip("sqlalchemy")
    figures(name)


def test_a_figure_that_falls_short_is_an_exit_code(monkeypatch, capsys):
    """`make trust` must not print a shortfall and succeed."""
    monkeypatch.setattr(trust, "SECTIONS", {"bad": lambda scale: [trust.Figure("bad", "0", "1", False)]})
    assert trust.main(["--quick"]) == 1
    assert "SHORT bad: 1" in capsys.readouterr().out


def test_a_run_that_has_reached_its_limit_goes_on_where_it_ended(monkeypatch, capsys, tmp_path):
    """A whole run takes longer than many a machine is lent for; a part that was found is not asked again."""
    import trust_parts

    asked = []

    def section(name):
        def figures(scale):
            asked.append(name)
            return [trust.Figure(name, "0", "0", True)]

        return figures

    monkeypatch.setattr(trust, "SECTIONS", {"one": section("one"), "two": section("two")})
    monkeypatch.setattr(trust, "PARTS", trust_parts.Parts())
    ends = iter([0.0, 0.0, 1.0, 1.0, 9.0])
    monkeypatch.setattr("trust_parts.time.monotonic", lambda: next(ends, 9.0))
    assert trust.main(["--parts", str(tmp_path), "--limit", "5"]) == trust.PAUSED
    assert "paused before two" in capsys.readouterr().err
    assert trust.main(["--parts", str(tmp_path), "--limit", "5"]) == 0
    assert asked == ["one", "two"]


def test_where_plain_loops_disagree_nothing_is_passed():
    """A figure of 5 % would be made of noise; unanswerable is not held, and more than a few of them are a shortfall."""
    import trust_times

    def told(ratio, floor, count=1):
        def row_of(ratio, floor):
            return trust_times.Row(
                what="a", middle=ratio, interval=(ratio, ratio), floor=floor, ratios=(ratio,) * 3, plain_s=(1.0, 1.0)
            )

        row, others = row_of(ratio, floor), [row_of(1.0, 1.0)] * (20 - count)
        return trust_times.told("times", [row] * count + others, False)

    assert told(1.0, 1.0)[3] and not told(1.06, 1.0)[3]
    _, _, words, holds = told(1.0, 1.06)
    assert holds and words.startswith("19 of 20, 1 unanswerable here")
    assert not told(1.0, 1.06, 2)[3]


@pytest.mark.parametrize(("alone", "compared"), [(False, [0, 1, 2, 3]), (True, [1, 3])])
def test_what_is_compared_with_a_plain_loop_follows_it_closely(alone, compared):
    """Alone it is the turn after a turn of its own; among others each, right after a loop, the two of them by turns."""
    import trust_times

    from opforge.runner.wire.messages import Memory, Sample, Samples

    class Loop:
        def __init__(self, takes_s):
            self.takes_s = takes_s

        def take(self, how):
            order.append("loop")
            return self.takes_s

    def ask(question):
        order.append("ours")
        return Samples(samples=(0.001 * (1 + question.launch),) * 3, batch=1)

    order = []
    beside = trust_times.Beside(ask, (Loop(0.5), Loop(0.25)), trust_times.FULL, alone)
    assert beside(Sample(launch=0, timer="host", cache="warm", batch=1, count=1, lead=0)).samples
    for turn in range(4):
        beside(Sample(launch=turn, timer="host", cache="warm", batch=1, count=3, lead=2))
    beside(Memory(launch=0))
    assert [ours for ours, _, _ in beside.seen] == pytest.approx([0.001 * (1 + turn) for turn in compared])
    assert {(plain, which) for _, plain, which in beside.seen} == {(0.5, 0), (0.25, 1)}
    turn = ["loop", "ours", "ours"] if alone else ["loop", "ours"]
    assert order == ["ours", *turn * (2 if alone else 4), "ours"]
    # what the timing says it was is what counts
    assert beside.moments(0.05)[0][0] == pytest.approx(0.05 * beside.seen[0][0] / 0.0025)


def test_a_row_is_asked_again_until_its_interval_lies_on_one_side_of_each_bound():
    """A median of noise lies within 5 % by luck, or beyond it."""
    import trust_times

    def row(low, high):
        return trust_times.Row(
            what="a", middle=1.0, interval=(low, high), floor=1.0, ratios=(1.0,), plain_s=(1.0,)
        ).decided

    assert row(0.96, 1.04) and row(1.06, 1.2) and row(0.8, 0.94)
    assert not row(0.94, 1.04) and not row(0.96, 1.06) and not row(0.9, 1.1)
    sets = [
        {"b": {"alone": [(2.0 * s, s, at % 2) for at in range(9)], "among": [(3.0 * s, s, 0)] * 8}} for s in (1, 10)
    ]
    found = trust_times.rows("a", sets, [("among", "alone"), ("alone", "plain")])
    assert [one.middle for one in found] == pytest.approx([1.5, 2.0]) and found[0].decided
    assert found[0].ratios == pytest.approx((1.5, 1.5))
