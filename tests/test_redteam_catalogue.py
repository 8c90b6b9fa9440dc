"""What the red team's catalogue holds, read and not run: families, guards, expectations, and what gets through."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.redteam import campaign, walls
from tests.redteam.by_family import FAMILIES, WHITE_BOX, Met, by_family
from tests.redteam.cheats import HOME, Cheat, cheats
from tests.redteam.lowered import RUNNER, lowered
from tests.redteam.on_gpu import HOME as GPU_HOME

ROOT = Path(__file__).resolve().parents[1]
LEAST = 60
"""White-box cheats that issue 20 asks for."""
LEAST_CAUGHT = 58
KNOWN = (*cheats(HOME), *cheats(GPU_HOME))
MADE_FOR_IT = tuple(cheat for cheat in cheats(HOME) if cheat.family == "M")


def test_there_are_sixty_white_box_cheats_of_seven_families():
    """A family that nobody attacks is one whose guards nobody asks about."""
    families = [cheat.catalogue for cheat in MADE_FOR_IT] + [attack.family for attack in walls.ATTACKS]
    assert set(families) == set(WHITE_BOX)
    assert all(families.count(family) >= 2 for family in WHITE_BOX)
    assert len(families) >= LEAST and len(families) - campaign.LEFT >= LEAST_CAUGHT
    names = [(cheat.operator, cheat.name) for cheat in MADE_FOR_IT] + [("", attack.name) for attack in walls.ATTACKS]
    assert len(set(names)) == len(names) == len(families)


@pytest.mark.parametrize("cheat", KNOWN, ids=lambda cheat: f"{cheat.operator}-{cheat.name}")
def test_each_cheat_says_what_it_is_and_how_it_is_shown(cheat: Cheat):
    """A word that is misspelt in a header would silently ask for something else: that it is caught, or by no guard."""
    assert re.fullmatch(r"[A-F]\d+|M[1-7]", cheat.catalogue) and cheat.family in FAMILIES
    assert cheat.mode in ("verify", "time", "time-out", "time-cold", "cold") and cheat.expect in ("", "lost", "passes")
    assert cheat.idea.endswith(".") and cheat.cases
    assert not cheat.guard.startswith("cases_") or cheat.guard.removeprefix("cases_") in cheat.cases
    for guard in (cheat.guard, *cheat.also):
        with lowered(guard):
            pass


def test_each_guard_is_switched_off_by_somebody():
    """A guard that is never down is not shown to be needed: it may have stopped working long ago."""
    asked = {cheat.guard for cheat in KNOWN if not cheat.left}
    asked |= {guard for attack in walls.ATTACKS for guard in attack.guards}
    assert set(RUNNER) <= asked
    # those of the judge, by what the module that lowers them knows
    text = Path(sys.modules[lowered.__module__].__file__ or "").read_text(encoding="utf-8")
    known = set(re.findall(r'^        "(\w+)": \[', text, re.MULTILINE))
    assert len(known) > 15 and known <= asked
    for attack in walls.ATTACKS:
        assert attack.guards and set(attack.guards) <= set(RUNNER), attack.name


@pytest.mark.parametrize("white_box", [False, True])
def test_the_whole_campaign_asks_every_cheat(white_box, monkeypatch):
    """One that is in the catalogue and in no campaign is a story."""
    monkeypatch.setattr(campaign, "confined", lambda: True)
    wanted = {cheat for cheat in cheats(HOME) if (cheat.family == "M") == white_box}
    assert set(campaign.chosen_cheats(campaign.FULL, white_box)) == wanted


def test_what_gets_through_is_named_with_what_it_needs():
    """docs/isolation.md promises that the rest is named: a row for each, and no row for one that is caught."""
    page = (ROOT / "docs" / "isolation.md").read_text(encoding="utf-8")
    _, _, section = page.partition("## Known to get through")
    rows = re.findall(r"^\| `(\w+/\w+)` \| (.+) \| (.+) \|$", section.partition("\n## ")[0], re.MULTILINE)
    left = {f"{cheat.operator}/{cheat.name}" for cheat in KNOWN if cheat.left}
    assert {name for name, _, _ in rows} == left and len(left) == campaign.LEFT
    assert all(len(does) > 20 and len(needs) > 20 for _, does, needs in rows)


def test_the_table_has_a_line_for_each_family_and_names_what_got_through():
    """A sum over all families hides the one that lost."""
    met = [
        Met(catalogue="A10", name="rt_relu/one", caught=True),
        Met(catalogue="M1", name="rt_relu/two", caught=True),
        Met(catalogue="M6", name="rt_var/three", caught=False),
        Met(catalogue="M6", name="rt_var/four", caught=True),
    ]
    lines = [line.split() for line in by_family(met).splitlines()]
    assert lines[0] == ["family", "asked", "caught", "through"]
    assert lines[1][0] == "A" and lines[1][-3:] == ["1", "1", "0"]
    assert lines[2][0] == "M1" and lines[2][-3:] == ["1", "1", "0"]
    assert lines[3][0] == "M6" and lines[3][-4:] == ["2", "1", "1", "rt_var/three"]
    assert lines[4][-4:] == ["3", "2", "1", "rt_var/three"] and len(lines) == 5


def test_a_hundred_exploits_are_sent_to_the_loop_each_from_a_source_and_different():
    """The same idea twice would be counted twice."""
    from tests.redteam.published import EXPLOITS, PLAIN, SIGNATURES

    assert len(EXPLOITS) >= 50 and campaign.FULL.sent[0] == len(EXPLOITS)
    assert campaign.FULL.sent[0] + campaign.FULL.sent[1] >= 100 and campaign.FULL.sent[2] >= 100
    assert len({item.name for item in EXPLOITS}) == len({item.text for item in EXPLOITS}) == len(EXPLOITS)
    assert all(len(item.source) > 20 and item.operator in SIGNATURES for item in EXPLOITS)
    assert all(item.text != PLAIN[item.operator] for item in EXPLOITS)


@pytest.mark.parametrize(("many", "of"), [(56, 4), (50, 3), (2, 5), (0, 2)])
def test_parts_of_the_candidates_are_together_all_of_them(many, of):
    """Sent in slices, each is sent once."""
    from tests.redteam.campaign import part
    from tests.redteam.candidates import part_of

    parts = [part_of(range(many), part(f"{number}/{of}")) for number in range(1, of + 1)]
    assert [item for one in parts for item in one] == list(range(many))
    for wrong in ("0/3", "4/3", "2", "a/b", "-1/2"):
        with pytest.raises(ArgumentTypeError, match="2/3"):
            part(wrong)


@pytest.mark.campaign
def test_the_loop_that_refuses_exploits_takes_what_is_right(tmp_path):
    """Without it a loop that refuses everything would pass."""
    from tests.redteam import candidates
    from tests.redteam.published import EXPLOITS, PLAIN

    def replaced(item):
        return type(item)(
            name=item.name, source=item.source, operator=item.operator, text="# again\n" + PLAIN[item.operator]
        )

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(candidates, "EXPLOITS", tuple(map(replaced, EXPLOITS[:: len(EXPLOITS) // 3])))
        found = list(candidates.published(3))
    assert [item.stage for item in found] == ["accepted"] * len(found) and len(found) == 3
