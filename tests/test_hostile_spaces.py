"""Spaces that are against the search: it ends with the best of the rest, and says how many points were lost and why."""

import os
import shutil
import stat
from pathlib import Path

import pytest

from opforge.backends.cpp import host_compiler
from opforge.core.evidence.verdict import Broken, Mismatch
from opforge.registry import load
from opforge.runner import Isolated
from opforge.timing import Plan
from opforge.tuning import TuneOptions, tune
from simulated import make_home

# six compilations each
pytestmark = [pytest.mark.own_servers, pytest.mark.campaign]

KERNEL = """// y = 2x, as slowly as it is told to.
/* opforge
space = {REPEATS = [1, 10, 20, 40, 60, 80]}
default = {REPEATS = 40}
[limits]
LIMIT
*/
#include "opforge/host.h"

namespace {

void twice(opforge::TensorView x, opforge::TensorView y) {
  const float* in = static_cast<const float*>(x.data_ptr());
  volatile float* out = static_cast<float*>(y.data_ptr());
  for (int r = 0; r < REPEATS; ++r) {
    for (int64_t i = 0; i < x.numel(); ++i) out[i] = in[i] * (REPEATS < SMALLEST ? 3.0f : 2.0f);
  }
}

}  // namespace

OPFORGE_EXPORT(run, twice)
"""


def searched(folder: Path, limit: str, smallest: int = 0) -> tuple:
    """The outcome of trying every point of `twice`, and its trials by REPEATS."""
    home = make_home(folder) / "twice"
    (home / "cpp_repeats.cpp").write_text(KERNEL.replace("LIMIT", limit).replace("SMALLEST", str(smallest)))
    definition = (home / "op.py").read_text()
    (home / "op.py").write_text(
        definition.replace("'torch_eager', 'torch_slow', 'torch_wrong'", "'cpp_repeats', 'torch_eager'")
    )
    options = TuneOptions(implementations=("cpp_repeats",), trials=0, plan=Plan(samples=5, budget_s=0.05))
    trials: list = []
    host = Isolated()
    try:
        (found,) = tune(load([home.parent]), "twice", options, host, add=lambda _: None, listener=trials.append)
    finally:
        host.close()
    return found, {trial.config.as_dict()["REPEATS"]: trial for trial in trials}


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    """Journals and compiled code of these searches alone."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("OPFORGE_CACHE", str(tmp_path / "cache"))


def test_a_space_without_a_legal_point_keeps_the_default_and_counts_the_rest(tmp_path):
    """The default is what a call gets untuned, so it is measured; that the other five were refused is said."""
    found, trials = searched(tmp_path, 'never = "REPEATS < 0"')
    assert set(trials) == {40} and found.refused == 5
    assert found.record.config.as_dict() == {"REPEATS": 40}


def test_a_limit_that_lies_costs_the_points_that_it_let_through(tmp_path):
    """It says that less than 10 repeats are fine; they compute something else, and would have been the fastest."""
    found, trials = searched(tmp_path, 'fine = "REPEATS <= 60"', smallest=10)
    assert found.refused == 1
    assert [repeats for repeats, trial in trials.items() if isinstance(trial.record.verdict, Mismatch)] == [1]
    assert found.record.config.as_dict() == {"REPEATS": 10}


def test_a_compiler_that_dies_at_every_third_point_leaves_the_others(tmp_path, monkeypatch):
    """Ended as by SIGSEGV, without a word: those points have failed, with the compiler's end as the reason, and nothing
    hangs.
    """
    name = host_compiler()
    wrapper = tmp_path / "bin" / name
    wrapper.parent.mkdir()
    real = shutil.which(name)
    wrapper.write_text(f'#!/bin/sh\ncase "$* " in *"REPEATS=1 "*|*"REPEATS=40 "*) exit 139 ;; esac\nexec {real} "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    found, trials = searched(tmp_path, 'fine = "REPEATS > 0"')
    assert trials, found.why
    lost = {repeats for repeats, trial in trials.items() if isinstance(getattr(trial.record, "verdict", None), Broken)}
    assert lost == {1, 40} and len(trials) == 6 and found.failed == 2
    assert found.record.config.as_dict() == {"REPEATS": 10}
