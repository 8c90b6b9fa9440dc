"""PyTorch's elementwise functions by name in formulas, and what becomes of them near zero."""

from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from opforge.definitions.bounds.formulas import formula_errors
from opforge.forge import files_of, from_formula
from opforge.forge.program.evaluate import evaluate
from opforge.forge.program.families import layout_of
from opforge.forge.program.ir import shown
from opforge.forge.read.traced import traced
from opforge.forge.write.torch_files import reference_text

FUNCTIONS = {
    "expm1(x)": torch.expm1,
    "exp2(x)": torch.exp2,
    "log1p(abs(x))": lambda x: torch.log1p(x.abs()),
    "log2(abs(x))": lambda x: torch.log2(x.abs()),
    "log10(abs(x))": lambda x: torch.log10(x.abs()),
    "sinh(x)": torch.sinh,
    "cosh(x)": torch.cosh,
    "tan(x)": torch.tan,
    "trunc(x)": torch.trunc,
    "frac(x)": torch.frac,
    "erfc(x)": torch.erfc,
    "silu(x)": F.silu,
    "gelu(x)": F.gelu,
    "softplus(x)": F.softplus,
    "softplus(x, 2)": lambda x: F.softplus(x, 2),
    "elu(x)": F.elu,
    "elu(x, 0.5)": lambda x: F.elu(x, 0.5),
    "celu(x)": F.celu,
    "celu(x, 2)": lambda x: F.celu(x, 2.0),
    "selu(x)": F.selu,
    "mish(x)": F.mish,
    "relu6(x)": F.relu6,
    "hardsigmoid(x)": F.hardsigmoid,
    "hardswish(x)": F.hardswish,
    "hardtanh(x)": F.hardtanh,
    "hardtanh(x, -2, 3)": lambda x: F.hardtanh(x, -2, 3),
    "leaky_relu(x)": F.leaky_relu,
    "leaky_relu(x, 0.2)": lambda x: F.leaky_relu(x, 0.2),
    "logsigmoid(x)": F.logsigmoid,
    "tanhshrink(x)": F.tanhshrink,
    "softsign(x)": F.softsign,
    "hardshrink(x)": F.hardshrink,
    "softshrink(x, 0.25)": lambda x: F.softshrink(x, 0.25),
    "threshold(x, 0.1, 20)": lambda x: F.threshold(x, 0.1, 20),
    # written out, and read as what they mean
    "exp(x) - 1": torch.expm1,
    "1 - exp(x)": lambda x: -torch.expm1(x),
    "-1 + exp(x)": torch.expm1,
    "log(1 + exp(x))": F.softplus,
    "log(abs(x) + 1)": lambda x: torch.log1p(x.abs()),
}
ODD = (-1e-8, 1e-8, 0.0, -1e-20, math.inf, -math.inf, math.nan)


@pytest.mark.parametrize("text", FUNCTIONS)
def test_functions_are_those_of_torch_and_relative_near_zero(text):
    x = torch.cat([torch.linspace(-30, 30, 601, dtype=torch.float64), torch.tensor(ODD, dtype=torch.float64)])
    result = evaluate(from_formula("made", f"y = {text}").program(), {"x": x}, {})["y"]
    torch.testing.assert_close(result, FUNCTIONS[text](x), rtol=3e-9, atol=0, equal_nan=True)


def reference(text):
    made = from_formula("made", text)
    space = {}
    exec(reference_text(made.program(), layout_of(made.program())), space)
    return space["reference"]


@pytest.mark.parametrize(
    ("text", "x", "right"),
    [
        ("elu(x)", -1e-8, -1e-8),
        ("softplus(x)", -20.0, 2.0611536e-9),
        ("exp(x) - 1", 1e-9, 1e-9),
        ("log(1 + exp(x))", -30.0, 9.357623e-14),
        ("log(1 + x)", 1e-12, 1e-12),
        ("tanh(x)", 1e-10, 1e-10),
        ("selu(x)", -1e-8, -1.7580993e-8),
        ("mish(x)", -20.0, -4.1223074e-8),
        ("logsigmoid(x)", 20.0, -2.0611536e-9),
        ("erfc(x)", 6.0, 2.1519737e-17),
    ],
)
def test_nothing_is_lost_near_zero_and_a_zero_there_does_not_pass(text, x, right):
    """In float32, of the generated reference; and its bound is too narrow for a kernel that says 0."""
    compute = reference(f"y = {text}")
    given = torch.tensor([x], dtype=torch.float32)
    assert float(compute(given)) == pytest.approx(right, rel=1e-6)
    exact = given.double()
    errors = formula_errors(compute, {"x": exact}, {"y": compute(exact)}, {})["y"]
    assert float(errors.largest) < 1e-4 * abs(right)


def test_what_is_lost_is_refused_in_the_case_tiny():
    """exp(x) - 1 in float32 on the numbers that the case draws."""
    compute = reference("y = elu(x)")
    x = 1e-4 * torch.randn(65, generator=torch.Generator().manual_seed(1))
    truth = compute(x.double())
    errors = formula_errors(compute, {"x": x.double()}, {"y": truth}, {})["y"]
    lost = torch.where(x < 0, x.exp() - 1, x).double()
    assert not bool(((lost - truth).abs() <= errors.largest + 2.0**-24 * truth.abs()).all())
    assert bool(((F.elu(x).double() - truth).abs() <= errors.largest).all())
    assert 'distribution="tiny"' in files_of(from_formula("made", "y = elu(x)"))["op.py"]


def test_patterns_keep_what_else_uses_the_exponential():
    program = from_formula("made", "p = exp(x)\ny = (p - 1) / (p + 1)").program()
    text = shown(program)
    assert "expm1" in text
    assert "= exp " in text
    x = torch.randn(9, dtype=torch.float64)
    torch.testing.assert_close(evaluate(program, {"x": x}, {})["y"], torch.tanh(x / 2))


@pytest.mark.parametrize(
    ("call", "function"),
    [("F.elu(x, 0.5)", "elu(x, 0.5)"), ("F.selu(x)", "selu(x)"), ("F.mish(x)", "mish(x)"),
     ("F.celu(x)", "celu(x, 1.0)"),
     ("F.softplus(x, 2)", "softplus(x, 2.0)"), ("F.logsigmoid(x)", "logsigmoid(x)"), ("x.expm1()", "expm1(x)"),
     ("torch.special.erfc(x)", "erfc(x)"), ("F.hardshrink(x)", "hardshrink(x, 0.5)")],
)  # fmt: skip
def test_a_function_of_torch_is_called_by_its_name(call, function, tmp_path):
    path = tmp_path / "f.py"
    path.write_text(f"import torch\nimport torch.nn.functional as F\ndef f(x):\n    return {call}\n")
    assert f"= {function}" in traced(f"{path}:f", "made", [(4, 6)]).formula.text


SWEEP = r"""
#include <cmath>
#include <cstdio>
#include <cstring>
#include "opforge/numeric/formulas.h"
int main() {
  double most[2] = {0, 0};
  for (uint64_t bits = 0; bits < 0x100000000ull; bits += 4099) {
    const uint32_t word = static_cast<uint32_t>(bits);
    float x;
    std::memcpy(&x, &word, 4);
    for (int which = 0; which < 2; ++which) {
      const double truth = which ? std::log1p(static_cast<double>(x)) : std::expm1(static_cast<double>(x));
      const float got = which ? opforge::log1p(x) : opforge::expm1(x);
      if (truth != truth && got != got) continue;
      if (static_cast<float>(truth) == got || std::fabs(truth) < 1.2e-38 || truth > 3.3e38) continue;
      const double error = std::fabs(got - truth) / std::ldexp(1.0, std::ilogb(truth) - 23);
      if (!(error <= most[which])) most[which] = error;
    }
  }
  std::printf("%.3f %.3f\n", most[0], most[1]);
}
"""


@pytest.mark.campaign
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_functions_of_the_host_have_the_errors_that_they_say(tmp_path):
    source, program = tmp_path / "sweep.cpp", tmp_path / "sweep"
    source.write_text(SWEEP)
    include = Path(__file__).resolve().parent.parent / "src/opforge/device/include"
    subprocess.run(["g++", "-O2", "-std=c++17", f"-I{include}", source, "-o", program], check=True)
    expm1, log1p = map(float, subprocess.run([program], check=True, capture_output=True, text=True).stdout.split())
    assert 0 < expm1 <= 3.6
    assert 0 < log1p <= 2.0
