"""The accuracy study of attention: what is stored in 8 bits, which group is chosen, what the figures ask for."""

import json

import pytest
import torch
from typer.testing import CliRunner

from opforge.cli.app import command_line
from opforge.report.accuracy_page import trends
from opforge.verify.extra import accuracy_advice, attention_accuracy as study


def run_cli(*words):
    """The command, in this process."""
    return CliRunner().invoke(command_line(["accuracy"]), ["accuracy", *words])


def test_each_group_of_channels_has_the_scale_of_its_largest_value():
    values = torch.ones(1, 2, 5, 8)
    values[0, 1, 3, 6] = -4.0
    scales = study.scales_of(values, 4, 2.0)
    assert scales.shape == (2, 1, 8) and torch.equal(scales[0], torch.full((1, 8), 0.5))
    assert scales[1, 0].tolist() == [0.5] * 4 + [2.0] * 4
    assert bool((study.scales_of(values, None, 2.0) == 2.0).all())


def test_what_is_beyond_the_format_is_clipped_and_counted():
    values, scale = torch.tensor([1.0, -448.0, 449.0, -1e6]), torch.ones(())
    assert study.stored(values, scale, "float8_e4m3fn").tolist() == [1.0, -448.0, 448.0, -448.0]
    assert study.clipped([values], [scale], "float8_e4m3fn") == 0.5
    # three bits of mantissa against two
    assert study.stored(torch.tensor([1.125]), scale, "float8_e4m3fn").item() == 1.125
    assert study.stored(torch.tensor([1.125]), scale, "float8_e5m2").item() == 1.0


def test_divergence_and_entropy_are_those_of_histograms():
    even = torch.linspace(0, 1, 6400, dtype=torch.float64)
    assert study.divergence(even, even) == 0.0 and study.divergence(even**2, even) > 0.1
    assert abs(study.entropy(even) - torch.tensor(64.0).log().item()) < 1e-3
    counts = study.error_histogram(torch.tensor([0.0, 1e-12, 1.5e-3, 1e9]))
    assert sum(counts) == 4 and counts[0] == 2 and counts[-1] == 1


def row(name, **changed):
    return {"variant": name, "mean_abs": 1.0, "p99_abs": 3.0, "sqnr_db": 40.0, "clip_ratio": 0.0, **changed}


@pytest.mark.parametrize(
    ("changed", "last", "words"),
    [
        ({"clip_ratio": 0.02}, {}, "2.00% is clipped"),
        ({"p99_abs": 30.0}, {}, "a long tail"),
        ({"amax_mean": 1.0, "amax_max": 9.0}, {}, "scale channels or groups"),
        ({"sqnr_db": 3.0}, {}, "keep this operand in 16 bits"),
        ({}, {"fp8 e4m3 tensor": {"p99_abs": 1.0}}, "a regression"),
    ],
)
def test_figures_beyond_a_threshold_are_advised_on(changed, last, words):
    thresholds = accuracy_advice.thresholds_from(None)
    plain = [row("baseline"), row("fp8 e4m3 tensor")]
    assert len(accuracy_advice.advice(plain, {}, thresholds)) == 1
    advised = accuracy_advice.advice([plain[0], row("fp8 e4m3 tensor", **changed)], last, thresholds)
    assert len(advised) == 2 and words in advised[0]


def test_finer_scales_are_advised_where_they_did_better():
    thresholds = accuracy_advice.thresholds_from(None)
    rows = [row("baseline"), row("fp8 e4m3 tensor", amax_mean=1.0, amax_max=9.0), row("fp8 e4m3 channel", mean_abs=0.5)]
    assert "fp8 e4m3 channel has 0.5 of mean error" in accuracy_advice.advice(rows, {}, thresholds)[0]
    rows[2]["mean_abs"] = 2.0
    assert "finer scales do worse" in accuracy_advice.advice(rows, {}, thresholds)[0]


@pytest.mark.campaign
def test_a_study_is_kept_compared_and_drawn(tmp_path):
    """Real tensors: E4M3 is nearer than E5M2, the group is written back, a history is compared with."""
    asked = ["attention", "--length", "96", "--heads", "2", "--window-left", "20", "--dropout", "0.1"]
    files = {name: tmp_path / name for name in ("svg", "page", "history", "choices")}
    asked += [word for name, path in files.items() for word in (f"--{name}", str(path))]
    first, again = run_cli(*asked), run_cli(*asked)
    told = run_cli(*asked[:-2], "--json")
    assert [each.exit_code for each in (first, again, told)] == [0, 0, 0], first.output
    assert "over the last" not in first.output and "p99 over the last 2 runs" in again.output
    said = json.loads(told.output)
    rows = {item["variant"]: item for item in said["rows"]}
    assert rows["baseline"]["sqnr_db"] > rows["fp8 e4m3 tensor"]["sqnr_db"] > rows["fp8 e5m2 tensor"]["sqnr_db"]
    assert {"window", "dropout"} <= set(rows) and not any("regression" in line for line in said["advice"])
    assert len(files["history"].read_text().splitlines()) == 3
    assert set(json.loads(files["choices"].read_text()).values()) <= {4, 8, 16, 32, 64}
    assert files["svg"].read_text().startswith("<svg") and "<svg" in files["page"].read_text()


def test_thresholds_are_written_edited_and_read(tmp_path):
    mine = tmp_path / "mine.toml"
    assert run_cli("--write-thresholds", str(mine)).exit_code == 0
    mine.write_text(mine.read_text().replace("clip_target = 0.01", "clip_target = 0.25"))
    assert accuracy_advice.thresholds_from(mine, ["least_sqnr_db=7"]) == {
        **accuracy_advice.thresholds_from(None), "clip_target": 0.25, "least_sqnr_db": 7.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["softmax"], "has no accuracy study"),
        (["--set", "clip=1"], "Known: clip_target"),
        (["--set", "clip_target"], "Write --set name=number"),
        (["--length", "0"], "Give at least 1"),
        (["--group-candidates", "4,x"], "Write --group-candidates"),
        (["--format", "e3m4"], "e4m3"),
        (["--thresholds", "missing.toml"], "--write-thresholds"),
        (["--dropout", "1.5"], "less than 1"),
    ],
)
def test_a_mistake_is_told_with_the_next_step(words, told):
    answer = run_cli(*words)
    assert answer.exit_code != 0 and told in f"{answer.output}{answer.exception}"


def test_a_trend_needs_two_runs():
    run = {"baseline": row("baseline")}
    assert trends([run]) == ""
    lines = trends([{"baseline": row("baseline", p99_abs=2.0)}, run | {"window": row("window")}]).splitlines()
    assert lines[2:] == ["| baseline | 2 | 3 |", "| window |  | 3 |"]
