"""The accuracy study of attention: what is stored in 8 bits, which group is chosen, what the figures ask for."""

import importlib.util
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "attention_accuracy.py"


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("attention_accuracy", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_group_of_channels_has_the_scale_of_its_largest_value(study):
    values = torch.ones(1, 2, 5, 8)
    values[0, 1, 3, 6] = -4.0
    scales = study.scales_of(values, 4, 2.0)
    assert scales.shape == (2, 1, 8) and torch.equal(scales[0], torch.full((1, 8), 0.5))
    assert scales[1, 0].tolist() == [0.5] * 4 + [2.0] * 4
    assert bool((study.scales_of(values, None, 2.0) == 2.0).all())


def test_what_is_beyond_the_format_is_clipped_and_counted(study):
    values, scale = torch.tensor([1.0, -448.0, 449.0, -1e6]), torch.ones(())
    assert study.stored(values, scale, "float8_e4m3fn").tolist() == [1.0, -448.0, 448.0, -448.0]
    assert study.clipped([values], [scale], "float8_e4m3fn") == 0.5
    # three bits of mantissa against two
    assert study.stored(torch.tensor([1.125]), scale, "float8_e4m3fn").item() == 1.125
    assert study.stored(torch.tensor([1.125]), scale, "float8_e5m2").item() == 1.0


def test_divergence_and_entropy_are_those_of_histograms(study):
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
def test_figures_beyond_a_threshold_are_advised_on(study, changed, last, words):
    thresholds = tomllib.loads(study.THRESHOLDS.read_text())
    plain = [row("baseline"), row("fp8 e4m3 tensor")]
    assert len(study.advice(plain, {}, thresholds)) == 1
    advised = study.advice([plain[0], row("fp8 e4m3 tensor", **changed)], last, thresholds)
    assert len(advised) == 2 and words in advised[0]


def test_finer_scales_are_advised_where_they_did_better(study):
    thresholds = tomllib.loads(study.THRESHOLDS.read_text())
    rows = [row("baseline"), row("fp8 e4m3 tensor", amax_mean=1.0, amax_max=9.0), row("fp8 e4m3 channel", mean_abs=0.5)]
    assert "fp8 e4m3 channel has 0.5 of mean error" in study.advice(rows, {}, thresholds)[0]
    rows[2]["mean_abs"] = 2.0
    assert "finer scales do worse" in study.advice(rows, {}, thresholds)[0]


@pytest.mark.campaign
def test_a_study_is_kept_compared_and_drawn(tmp_path):
    """Real tensors: E4M3 is nearer than E5M2, the group is written back, a history is compared with."""
    command = [sys.executable, SCRIPT, "--length", "96", "--heads", "2", "--window-left", "20", "--dropout", "0.1"]
    files = {name: tmp_path / name for name in ("json", "svg", "page", "history", "choices")}
    command += [word for name, path in files.items() for word in (f"--{name}", path)]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    rows = {item["variant"]: item for item in json.loads(files["json"].read_text())["rows"]}
    assert rows["baseline"]["sqnr_db"] > rows["fp8 e4m3 tensor"]["sqnr_db"] > rows["fp8 e5m2 tensor"]["sqnr_db"]
    assert {"window", "dropout"} <= set(rows) and "regression" not in done.stdout
    assert len(files["history"].read_text().splitlines()) == 2
    assert set(json.loads(files["choices"].read_text()).values()) <= {4, 8, 16, 32, 64}
    assert files["svg"].read_text().startswith("<svg") and "<svg" in files["page"].read_text()
