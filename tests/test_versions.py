"""Versions: of rounds and of ladders on record; arrows on the roofline; the version report of the command line."""

from __future__ import annotations

import sys
import uuid
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.test_optimize import made_up  # noqa: F401
from tests.test_report import record

from opforge.cli.app import command_line
from opforge.core.definition.implementation import Config
from opforge.core.evidence.optimization import KEPT, ROUND
from opforge.core.language.errors import UsageError
from opforge.report import html
from opforge.report.roof_chart import roofline
from opforge.report.versions import Move, moves_of_runs, moves_of_tuning, of_ladder, of_run, version_report
from opforge.store import Store


def timed(name="torch_eager", seconds=1e-3, **changes):
    made = record(name, **changes)
    timing = made.timing
    assert timing is not None
    return replace(made, id=uuid.uuid4().hex, timing=replace(timing, samples_s=(seconds,) * 5))


@pytest.fixture
def rounds(made_up, tmp_path):  # noqa: F811
    with Store.open(tmp_path / "s.sqlite") as store:
        return made_up(store)


def test_a_run_has_a_version_for_its_start_and_for_each_round_that_was_kept(rounds):
    versions = of_run(rounds)
    kept = [one for one in rounds if one.stage == ROUND and one.decision == KEPT]
    assert len(versions) == 1 + len(kept) > 2
    assert versions[0].change == "start" and versions[0].gain is None
    assert [one.gain for one in versions[1:]] == [one.comparison.speedup for one in kept]
    assert all("→" in one.change for one in versions[1:])
    assert all(one.profile and "opforge" in one.next for one in versions)
    text = version_report(versions, "gated", "zh")
    assert "| 版本 | 优化点 |" in text and text.count("\n| cpp_rows v0.") == len(versions)


def test_a_ladder_is_told_from_the_slowest_to_the_fastest():
    steps = [timed("cpp_rows", 1e-3), timed("torch_eager", 4e-3), timed("cpp_simd", 2e-3)]
    versions = of_ladder(steps, {"cpp_simd": "one pass"})
    assert [one.name for one in versions] == ["torch_eager", "cpp_simd", "cpp_rows"]
    assert [one.gain for one in versions] == [None, pytest.approx(2.0), pytest.approx(2.0)]
    assert versions[1].change == "one pass" and "opforge diagnose" in versions[1].next
    assert "+100 %" in version_report(versions, "x")


def test_arrows_lead_from_round_to_round_and_from_the_default_to_the_tuned_point(rounds):
    first = rounds[0]
    here = {"operator": "gated", "device": first.device, "workload": first.workload, "dtype": first.dtype}
    records = [timed("cpp_rows", 0.5, **here)]
    (move,) = moves_of_runs(rounds, records)
    assert len(move.rates) == len(of_run(rounds)) and sorted(move.rates) == list(move.rates)
    default, tuned = Config((("BLOCK", 64),)), Config((("BLOCK", 512),))
    both = [timed("triton_a", 2e-3, config=default, **here), timed("triton_a", 1e-3, config=tuned, **here)]
    (arrow,) = moves_of_tuning(both, {("gated", "triton_a"): default})
    assert arrow.rates[1] == pytest.approx(2 * arrow.rates[0]) and "BLOCK=512" in arrow.words[1]
    # a default that is the fastest, or that is unknown, has no arrow
    assert moves_of_tuning(both, {("gated", "triton_a"): tuned}) == ()
    assert moves_of_tuning(both, {}) == ()
    picture = roofline(records, None, {"cpp": 0}, {}, [move, arrow])
    tree = ElementTree.fromstring(picture)
    ways = [one for one in tree.iter() if one.get("class") == "way" and one.tag.endswith("line")]
    assert len(ways) == len(move.rates)
    # every arrow points upwards: faster is higher
    assert all(float(one.get("y2")) < float(one.get("y1")) for one in ways)
    assert all(16 <= float(one.get(at)) <= 482 for one in ways for at in ("y1", "y2"))
    assert 'class="way"' not in roofline(records, None, {"cpp": 0}, {})


def test_the_page_tells_rounds_and_versions_and_lets_no_markup_through(rounds):
    first = rounds[0]
    records = [
        timed("cpp_rows", 0.5, operator="gated", device=first.device, workload=first.workload, dtype=first.dtype)
    ]
    spoilt = [
        replace(one, reason="<script>x</script>", strategy=one.strategy and f"<i>{one.strategy}") for one in rounds
    ]
    page = html(records, title="t", rounds=spoilt)
    assert "gated: versions" in page and "arrows lead from version to version" in page and 'class="way"' in page
    assert "<script>" not in page and "<i>" not in page
    assert "arrows lead" not in html(records, title="t")
    assert Move(operator="a", intensity=1.0, rates=(1.0,), words=("a",)).rates == (1.0,)


def test_the_command_prints_the_version_report_of_a_run_or_of_a_ladder(rounds, tmp_path, monkeypatch):
    monkeypatch.setenv("OPFORGE_STORE", str(tmp_path / "s.sqlite"))

    def ask(*words):
        return CliRunner().invoke(command_line(["log"]), ["log", *words])

    answer = ask("gated", "--versions")
    assert answer.exit_code == 0 and "| Version | Change | Time | Gain | Profile | Next step |" in answer.stdout
    monkeypatch.setenv("OPFORGE_STORE", str(tmp_path / "ladder.sqlite"))
    with Store.open(tmp_path / "ladder.sqlite") as store:
        store.add([timed("torch_eager", 4e-3, operator="softmax"), timed("cpp_twopass", 1e-3, operator="softmax")])
    answer = ask("softmax", "--versions", "--out", str(tmp_path / "v.md"))
    assert answer.exit_code == 0, answer.output
    assert "+300 %" in (tmp_path / "v.md").read_text()
    assert isinstance(ask("relu", "--versions").exception, UsageError)
