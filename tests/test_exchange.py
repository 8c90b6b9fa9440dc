"""Results of searches in other tuners' formats: what is written can be read again, and what comes in is a beginning,
never evidence.
"""

import json
from dataclasses import replace

import pytest

from opforge.core.definition.implementation import Config
from opforge.core.evidence.verdict import Broken, Crash, Mismatch, Timeout, Unsupported
from opforge.core.language.errors import UsageError
from opforge.tuning.exchange import INVALIDITY, mnk_key, traces_in, triton_configs, written
from opforge.tuning.strategies import Failure, Measured
from simulated import record

AXES = {"m": 512, "n": 256, "k": 64}


def trial(seconds=1e-3, verdict=None, **values):
    """A record of one point of a matrix product."""
    timed = record(seconds)
    changed = {"verdict": verdict, "timing": None} if verdict is not None else {}
    return replace(timed, axes=AXES, dtype="float16", config=Config(tuple(values.items())), trial=True, **changed)


def broken(kind, **fields):
    """A verdict of a kind, whatever else it holds."""
    verdict = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(verdict, name, value)
    return verdict


TRIALS = [
    trial(2e-3, BLOCK=16, num_warps=4),
    trial(1e-3, BLOCK=32, num_warps=4),
    trial(verdict=broken(Mismatch), BLOCK=64, num_warps=4),
    trial(verdict=broken(Timeout), BLOCK=64, num_warps=8),
    trial(verdict=broken(Crash), BLOCK=128, num_warps=4),
    trial(verdict=broken(Broken, reason="ptxas does not compile it"), BLOCK=256, num_warps=4),
    trial(verdict=Unsupported(reason="not measured again: same code"), BLOCK=512, num_warps=4),
]
STAGES = ["wrong", "slow", "launch", "compile"]


def read(tmp_path, form):
    file = tmp_path / f"{form}.json"
    file.write_text(json.dumps(written(form, TRIALS)))
    return traces_in(file, axes=AXES, dtype="float16")


def test_t4_says_of_each_point_what_became_of_it(tmp_path):
    """As the schema 1.0.0 wants it: configuration, times, invalidity and correctness are required, words are its own. A
    point that was not measured has no result.
    """
    said = written("t4", TRIALS)
    assert said["schema_version"] == "1.0.0" and len(said["results"]) == 6
    for result in said["results"]:
        assert {"configuration", "times", "invalidity", "correctness"} <= set(result)
        assert result["invalidity"] in {"timeout", "compile", "runtime", "correctness", "constraints", "correct"}
    assert [item["invalidity"] for item in said["results"][2:]] == [INVALIDITY[stage] for stage in STAGES]
    (trace,) = read(tmp_path, "t4")
    assert dict(trace.outcomes)[TRIALS[1].config] == Measured(seconds=pytest.approx(1e-3))
    assert [outcome.stage for _, outcome in trace.outcomes if isinstance(outcome, Failure)] == STAGES


def test_a_kernel_tuner_cache_holds_one_search(tmp_path):
    """Its simulation mode finds a point by its values in the order of the parameters, and a failure by its word."""
    said = written("kernel-tuner", TRIALS)
    assert said["tune_params_keys"] == ["BLOCK", "num_warps"] and said["tune_params"]["num_warps"] == [4, 8]
    assert said["cache"]["32,4"]["time"] == pytest.approx(1.0)
    assert said["cache"]["256,4"]["time"] == "CompilationFailedConfig"
    (trace,) = read(tmp_path, "kernel-tuner")
    times = [outcome.seconds for _, outcome in trace.outcomes if isinstance(outcome, Measured)]
    assert times == pytest.approx([2e-3, 1e-3]) and len(trace.outcomes) == 6
    with pytest.raises(UsageError, match="holds one search, and these are 2"):
        written("kernel-tuner", [*TRIALS, replace(TRIALS[0], dtype="float32")])


def test_choices_by_shape_and_dtype_go_both_ways(tmp_path):
    """`MxNxK:dtype`: the fastest of each; another shape says nothing here."""
    assert written("mnk", TRIALS) == {"512x256x64:float16": {"BLOCK": 32, "num_warps": 4, "ms": pytest.approx(1.0)}}
    (trace,) = read(tmp_path, "mnk")
    assert [config for config, _ in trace.outcomes] == [TRIALS[1].config]
    assert traces_in(tmp_path / "mnk.json", axes=AXES | {"k": 65}, dtype="float16") == []
    assert mnk_key({"rows": 4}, "float16") == ""
    with pytest.raises(UsageError, match="axes m, n and k"):
        written("mnk", [replace(TRIALS[0], axes={"rows": 4})])


SOURCE = """
import triton
SIZE = 64
@triton.autotune(configs=[
    triton.Config({"BLOCK_M": 128, "BLOCK_N": 64}, num_warps=8, num_stages=3),
    triton.Config({"BLOCK_M": SIZE}, num_warps=4),
    Config(kwargs, num_warps=2),
    triton.Config({"BLOCK_M": 32, "BLOCK_N": 32}, num_warps=4, pre_hook=None),
], key=["M"])
def kernel(): ...
raise SystemExit("this file is read and not run")
"""


def test_autotune_configs_are_read_and_not_run(tmp_path):
    """What is computed when the file runs cannot be known without running somebody's code."""
    expected = [
        {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3},
        {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4},
    ]
    assert [config.as_dict() for config in triton_configs(SOURCE)] == expected
    (tmp_path / "theirs.py").write_text(SOURCE)
    assert len(traces_in(tmp_path / "theirs.py", axes=AXES, dtype="float16")) == 2


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"results": [1]}', '{"cache": {"1": {}}}', '{"a": 1}'])
def test_a_file_of_something_else_is_refused_with_what_is_known(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UsageError, match="Kernel Tuner cache"):
        traces_in(tmp_path / "x.json", axes=AXES, dtype="float16")
