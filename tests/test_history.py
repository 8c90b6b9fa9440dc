"""Histories: steps are found where they are, and nowhere else. Series are simulated with fixed seeds."""

import math
import random

import pytest

from opforge.cli.app import command_line
from opforge.core.evidence.verdict import Unsupported
from opforge.gate import history, segments
from opforge.gate.history_chart import picture_of
from opforge.store import Store
from simulated import record


def series(generator, noise, step=0.0, count=80, at=50):
    """Logarithms of times: noise, 3 % of points spiked by 30 %, a step at commit `at`."""
    return [
        math.log(
            (1 + (step if position >= at else 0))
            * math.exp(generator.gauss(0, noise))
            * (1.3 if generator.random() < 0.03 else 1)
        )
        for position in range(count)
    ]


@pytest.mark.parametrize("noise", [0.01, 0.03])
def test_flat_histories_stay_silent(noise):
    """Comparing with the last commit raises an alarm in 94 % of such histories."""
    generator = random.Random(1)
    alarms = sum(len(segments(series(generator, noise), smallest=0.02)) > 1 for _ in range(40))
    assert alarms <= 1


@pytest.mark.parametrize("noise", [0.01, 0.03])
def test_a_step_of_ten_percent_is_located(noise):
    """Within three commits, spikes or not."""
    generator = random.Random(2)
    hits = sum(
        any(abs(part.start - 50) <= 3 for part in segments(series(generator, noise, 0.1), smallest=0.02)[1:])
        for _ in range(40)
    )
    assert hits >= 39


def test_up_and_down_again_is_two_steps():
    """A slow-down that was repaired."""
    generator = random.Random(3)
    values = [level + generator.gauss(0, 0.01) for level in [0.0] * 20 + [0.2] * 20 + [0.0] * 20]
    assert [part.start for part in segments(values, smallest=0.02)] == [0, 20, 40]


def test_two_bad_points_are_a_spike_and_three_may_be_a_step():
    """A busy machine must not look like a regression; a regression must show soon."""
    assert len(segments([0.0, 0.01] * 10 + [0.3] * 2 + [0.0, 0.01] * 5, smallest=0.02)) == 1
    assert [part.start for part in segments([0.0, 0.01] * 10 + [0.3, 0.31, 0.3], smallest=0.02)] == [0, 20]


def test_a_series_without_noise_and_one_point_are_flat():
    """Nothing divides by zero."""
    assert len(segments([1.0] * 30)) == 1
    assert len(segments([1.0])) == 1
    assert segments([]) == ()


def test_steps_below_the_smallest_are_none():
    """1 % is a fact of statistics and of no use to anybody."""
    values = [0.0] * 30 + [0.01] * 30
    assert len(segments(values)) == 2
    assert len(segments(values, smallest=0.02)) == 1


def test_points_with_wide_intervals_count_less():
    """Four wild points that nobody trusts make no level."""
    values = [0.0, 0.01] * 10 + [0.5] * 4 + [0.0, 0.01] * 8
    trusted = [100.0] * len(values)
    doubted = [0.01 if 20 <= position < 24 else 100.0 for position in range(len(values))]
    assert len(segments(values, trusted, smallest=0.02)) > 1
    assert len(segments(values, doubted, smallest=0.02)) == 1


def test_a_long_history_answers_soon():
    """Only the last points are fitted, and positions still count from the beginning."""
    generator = random.Random(4)
    values = [generator.gauss(0, 0.01) for _ in range(400)] + [0.2 + generator.gauss(0, 0.01) for _ in range(60)]
    found = segments(values, smallest=0.02)
    assert [part.start for part in found] == [0, 400]
    assert found[-1].end == 460


def test_each_machine_has_a_series_of_its_own():
    """A faster machine is no improvement of the code."""
    records = [record(1e-3, day=day, facts={"python": "3.11"}) for day in range(6)] + [
        record(2e-3, day=day, facts={"python": "3.12"}) for day in range(6)
    ]
    found = history(records)
    assert len(found) == 2
    assert all(not one.changes for one in found)


def test_commits_around_a_step_are_named():
    """So that somebody can look."""
    records = [record(1e-3 if day < 10 else 1.5e-3, day=day, facts={"git.commit": f"{day:040d}"}) for day in range(20)]
    (found,) = history(reversed(records))
    (change,) = found.changes
    assert (change.at, int(change.last_good), int(change.first_changed)) == (10, 9, 10)
    assert change.ratio == pytest.approx(1.5)
    assert "50% slower since 2026-01-11" in found.words


def test_what_did_not_pass_or_is_suspect_is_no_point():
    """A wrong kernel's speed is no history."""
    records = [
        record(day=0),
        record(day=1, verdict=Unsupported(reason="")),
        record(day=2, suspect="too fast"),
        record(day=3),
    ]
    (found,) = history(records)
    assert len(found.points) == 2


def test_a_history_can_be_drawn():
    """Well-formed, with its levels and its step."""
    import xml.etree.ElementTree as xml

    (found,) = history([record(1e-3 if day < 10 else 1.5e-3, day=day) for day in range(20)])
    picture = picture_of(found)
    assert xml.fromstring(picture).tag.endswith("svg")
    assert picture.count('class="level"') == 2
    assert "x1.50" in picture


def test_what_is_named_twice_is_read_once(tmp_path, monkeypatch, capsys):
    """A timing that counts twice makes a spike look like a step."""
    store = f"sqlite:///{tmp_path / 'history.sqlite'}"
    with Store.open(store) as opened:
        opened.add([record(1e-3, day=day) for day in range(2)])
    twice = ["softmax", "--dtype", "float32", "-i", "torch_eager", "--workload", "some"]
    command_line(["history"])(["--store", store, "history", *twice, *twice], standalone_mode=False)
    assert ": 2 timings," in capsys.readouterr().out


def test_a_picture_stays_in_its_folder(tmp_path):
    """A workload called a/b, or ../b, of an imported record is a name and no place."""
    store = f"sqlite:///{tmp_path / 'history.sqlite'}"
    with Store.open(store) as opened:
        opened.add([record(1e-3, workload="a/../../b")])
    command_line(["history"])(
        ["--store", store, "history", "softmax", "--plot", str(tmp_path / "plots")], standalone_mode=False
    )
    (file,) = (tmp_path / "plots").iterdir()
    assert file.name.startswith("softmax-torch_eager-a_.._.._b-float32-")
