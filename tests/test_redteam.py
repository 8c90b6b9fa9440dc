"""A reduced red-team campaign. `make redteam` runs all of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.redteam import campaign

pytestmark = [pytest.mark.own_servers, pytest.mark.xdist_group("redteam"), pytest.mark.campaign]

# how long something takes says as much about the machine as about the verifier: `make redteam` asks that, on a quiet
# one
NOT_ASKED = ("seconds for the cheats", "seconds for the slowest bug")


@pytest.mark.parametrize("part", ["cheats", "honest", "candidates", "bugs", "hostile", "white-box", "walls", "deaths"])
def test_every_count_of_the_quick_campaign_is_reached(part, monkeypatch):
    """A verifier that lets one cheat through, or rejects one honest kernel, is not to be believed in anything else."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    said: list[str] = []
    counts = campaign.run(campaign.QUICK, said.append, [part])
    short = [count for count in counts if not count.holds and count.what not in NOT_ASKED]
    assert not short, "\n".join((*said, campaign.table(counts)))
