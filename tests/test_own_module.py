"""A task's own module, as it stands, is the baseline of a speed-up: eager and compiled, on any sizes."""

from __future__ import annotations

import statistics
import time
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from opforge.core.evidence.verdict import Pass
from opforge.forge.generate import files_of
from opforge.forge.suites.suite import judged
from opforge.forge.suites.tasks import one_task

TASK = '''
import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    """A layer."""
    def __init__(self, wide, narrow):
        super().__init__()
        self.linear = nn.Linear(wide, narrow)

    def forward(self, x):
        return BODY

batch, wide, narrow = 1024, 1048576, 512

def get_inputs():
    return [torch.rand(batch, wide)]

def get_init_inputs():
    return [wide, narrow]
'''
PLAIN = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.BODY

def get_inputs():
    return [torch.rand(4096, 512)]
"""


def prepared(tmp_path, text, name="layer"):
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    return one_task(path).prepare(name)


def loaded(text):
    space = {"__name__": "own"}
    exec(compile(text, "torch_task.py", "exec"), space)
    return space["run"]


def test_the_own_module_takes_parameters_as_inputs_on_any_sizes(tmp_path):
    """The module was made for a million columns, without memory for them."""
    found = prepared(tmp_path, TASK.replace("BODY", "F.leaky_relu(self.linear(x), 0.1)"))
    files = files_of(found.definition, more=found.more)
    assert files["torch_task.py"].startswith('"""The task\'s own PyTorch')
    assert TASK.strip().split("BODY")[1] in files["torch_task.py"]
    assert '"torch_task",' in files["op.py"]
    assert "| `torch_task` | the task's own PyTorch" in files["README.md"]
    run = loaded(files["torch_task.py"])
    names = [item.name for item in found.definition.inputs]
    given = {"x": torch.randn(3, 5), "linear_weight": torch.randn(4, 5), "linear_bias": torch.randn(4)}
    expected = F.leaky_relu(F.linear(given["x"], given["linear_weight"], given["linear_bias"]), 0.1)
    torch.testing.assert_close(run(*(given[name] for name in names)), expected, rtol=0, atol=0)
    # the places are set anew at each call
    torch.testing.assert_close(run(*(2 * given[name] for name in names)) / 4, expected, rtol=1, atol=2)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TASK.replace("BODY", "F.layer_norm(self.linear(x), (narrow,))"), "holds for its own sizes alone"),
        (TASK.replace("BODY", "F.relu(self.linear(x))") + "\nSUPPORTS = {}\n", "its SUPPORTS means something"),
    ],
)
def test_a_module_that_is_no_baseline_says_why(text, reason, tmp_path):
    found = prepared(tmp_path, text)
    assert not found.more.files
    assert reason in found.left_out[0]


def test_a_suite_is_told_against_the_better_of_both():
    """The own module counts as PyTorch, not as a solution."""

    def record(name, backend, seconds):
        timing = SimpleNamespace(median_s=seconds)
        of = {"implementation": name, "backend": backend, "verdict": Pass.__new__(Pass), "roof_s": None}
        return SimpleNamespace(**of, timing=timing)

    records = [record("torch_eager", "torch", 4e-3), record("torch_task", "torch", 1e-3), record("cpp", "cpp", 5e-4)]
    found = judged("t", records)
    assert found.baseline == "torch_task"
    assert found.speed_up == pytest.approx(2.0)


@pytest.mark.campaign
@pytest.mark.parametrize(
    "body", ["elu(x)", "selu(x)", "softplus(x)", "mish(x)", "hardsigmoid(x)", "hardtanh(x)", "softmax(x, -1)"]
)
def test_the_baseline_takes_as_long_as_the_own_call(body, tmp_path):
    """Formulas written out took 1.8 to 4 times as long. Interleaved, by the processor's time, which other processes
    lengthen less than the clock's; the best of three.
    """
    run = loaded(prepared(tmp_path, PLAIN.replace("BODY", body)).more.files["torch_task.py"])
    space = {}
    exec(PLAIN.replace("BODY", body), space)
    own, x = space["Model"](), torch.rand(4096, 512)

    def ratio():
        samples = {run: [], own: []}
        for turn in range(16):
            # who comes second finds other caches
            for function, times in list(samples.items())[:: 1 if turn % 2 else -1]:
                begin = time.process_time()
                function(x)
                times.append(time.process_time() - begin)
        return statistics.median(samples[run]) / statistics.median(samples[own])

    ratios = [ratio() for _ in range(3)]
    assert min(ratios) <= 1.05, ratios
