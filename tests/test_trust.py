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
