"""The red team's kernels that need a GPU: side streams, early returns, pinned caches, poisoned contexts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.redteam import campaign
from tests.redteam.cheats import cheats
from tests.redteam.on_gpu import HOME


@pytest.mark.gpu
def test_every_count_of_the_gpu_campaign_is_reached(monkeypatch):
    """A clock that can be told lies, or a poisoned context that fails its neighbour, makes every figure from a GPU
    worthless.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    said: list[str] = []
    counts = campaign.run(campaign.QUICK, said.append, ["gpu"])
    assert all(count.holds for count in counts), "\n".join((*said, campaign.table(counts)))


def test_the_catalogue_for_gpus_names_guards_that_exist():
    """What cannot run here can still be read here: each file says its family, its guard and how it is shown."""
    from tests.redteam.lowered import lowered

    found = cheats(HOME)
    assert len(found) >= 40
    for cheat in found:
        assert cheat.family in "ABCDEM", cheat
        assert cheat.mode in ("verify", "time", "time-out", "time-cold", "cold"), cheat
        for guard in (cheat.guard, *cheat.also):
            with lowered(guard):
                pass
