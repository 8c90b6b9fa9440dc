"""Mistakes that once passed are found in each family, and the files that they were made from pass."""

from __future__ import annotations

import pytest
from tests.redteam.once_passed import FAMILIES, hunt, kinds, was_missed

EVERY_DAY = ("elementwise",)


@pytest.mark.parametrize(
    "family", [one if one in EVERY_DAY else pytest.param(one, marks=pytest.mark.campaign) for one in FAMILIES]
)
def test_mistakes_that_once_passed(tmp_path, family):
    missed = {kind: verdict for kind, verdict in hunt(tmp_path, family, kinds(family)) if was_missed(kind, verdict)}
    assert not missed, missed
