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


@pytest.mark.slow
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
        row = trust_times.Row("a", (ratio,) * 3, (floor,) * 3, (1.0, 1.0))
        others = [trust_times.Row("b", (1.0,) * 3, (1.0,) * 3, (1.0, 1.0))] * (20 - count)
        return trust_times.told("times", [row] * count + others, False)

    assert told(1.0, 1.0)[3] and not told(1.06, 1.0)[3]
    _, _, words, holds = told(1.0, 1.06)
    assert holds and words.startswith("19 of 20, 1 unanswerable here")
    assert not told(1.0, 1.06, 2)[3]
