"""Operators over every format of numbers: float64 is judged as float64, whole numbers exactly, and each distribution
says something of them.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

from opforge.core.definition.dtypes import DTYPES
from opforge.dispatch import Chooser, Function
from opforge.registry import load
from opforge.runner import Isolated, allocate, fill
from opforge.runner.worker.inputs import DISTRIBUTIONS
from opforge.verify import CaseCache, verify
from opforge.verify.cases.hidden import QUICK

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "operators"
WHOLE = ("int64", "int32", "int16", "int8", "uint8", "bool")

KERNELS = {
    "torch_eager": "(x + bias).where(mask, x)",
    # right to 24 bits, which is what float32 has
    "torch_narrow": "(x.float() + bias.float()).to(x.dtype).where(mask, x)",
    # saturates where whole numbers wrap
    "torch_saturated": (
        "(x.long() + bias.long()).clamp(torch.iinfo(x.dtype).min, torch.iinfo(x.dtype).max).to(x.dtype).where(mask, x)"
    ),
    "torch_unmasked": "x + bias",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The example with kernels in PyTorch alone, three of them wrong."""
    root = tmp_path_factory.mktemp("formats")
    folder = root / "masked_add"
    shutil.copytree(EXAMPLES / "masked_add", folder)
    text = (folder / "op.py").read_text()
    (folder / "op.py").write_text(text.replace('("triton_blocks", "cpp_rows", "torch_eager")', repr(tuple(KERNELS))))
    for name, expression in KERNELS.items():
        (folder / f"{name}.py").write_text(f"import torch\n\n\ndef run(x, bias, mask):\n    return {expression}\n")
    return root


@pytest.mark.parametrize(
    ("dtype", "wrong"),
    [
        ("int32", {"torch_narrow", "torch_saturated", "torch_unmasked"}),
        ("float64", {"torch_narrow", "torch_saturated", "torch_unmasked"}),
        ("uint8", {"torch_saturated", "torch_unmasked"}),
    ],
)
@pytest.mark.first_only
def test_a_format_is_judged_in_its_own_digits(home, dtype, wrong):
    """A sum that went through float32, or that saturates, is wrong in the formats where that shows."""
    registry = load([home])
    with Isolated() as host:
        bench = CaseCache(registry=registry, operator=registry.operator("masked_add"), host=host, device="cpu")
        found = {
            name: type(
                verify(
                    bench,
                    registry.implementation("masked_add", name),
                    dtype,
                    effort=dataclasses.replace(QUICK, own=True, shrink_s=0.0),
                )
            ).__name__
            for name in KERNELS
        }
        bench.close()
    assert {name for name, verdict in found.items() if verdict != "Pass"} == wrong, found


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=pytest.mark.campaign if dtype in ("uint8", "float64") else pytest.mark.slow)
        for name in ("cpp_rows", "triton_blocks", "torch_eager")
        for dtype in load([EXAMPLES]).operator("masked_add").dtypes
    ],
)
def test_the_example_passes_in_every_format(name, dtype):
    registry = load([EXAMPLES])
    with Isolated() as host:
        bench = CaseCache(registry=registry, operator=registry.operator("masked_add"), host=host, device="cpu")
        verdict = verify(bench, registry.implementation("masked_add", name), dtype)
        bench.close()
    assert type(verdict).__name__ == "Pass", verdict


@pytest.mark.parametrize("dtype", WHOLE)
def test_every_distribution_has_whole_numbers(dtype):
    """Drawn as floats and converted, most were 0 and 1, and infinities had no meaning."""
    operator = dataclasses.replace(load([EXAMPLES]).operator("masked_add"), dtypes=(dtype,))
    form = DTYPES[dtype]
    assert (form.least, form.most) == (
        (0, 1) if dtype == "bool" else (torch.iinfo(getattr(torch, dtype)).min, torch.iinfo(getattr(torch, dtype)).max)
    )
    for distribution in DISTRIBUTIONS:
        case = dataclasses.replace(
            operator.cases[0], axes={"lead": (40,), "cols": 64}, distribution=distribution, seed=5
        )
        arena = allocate(operator, case, dtype)
        fill(arena, operator, case, 5)
        values = arena.tensors("input")["x"].long()
        assert values.unique().numel() >= (1 if distribution in ("zeros", "ones") else 2)
        if distribution == "special":
            assert values.min() == form.least and values.max() == form.most
        if distribution == "exponents" and form.itemsize > 1:
            assert values.abs().max() > form.most // 4 and values.abs().min() < 8
        arena.close()


def test_float64_inputs_have_digits_that_float32_lacks():
    """Values drawn in float32 are right for a kernel that reads them as float32."""
    operator = load([EXAMPLES]).operator("masked_add")
    for distribution in ("normal", "uniform", "large", "special"):
        case = dataclasses.replace(operator.cases[0], axes={"lead": (9,), "cols": 65}, distribution=distribution)
        arena = allocate(operator, case, "float64")
        fill(arena, operator, case, 5)
        values = arena.tensors("input")["x"]
        assert (values != values.float().double()).float().mean() > 0.8 or distribution == "special"
        arena.close()


@pytest.fixture(scope="module")
def masked_add(home, tmp_path_factory):
    return Function(
        load([home]).operator("masked_add"),
        Chooser(load([home]), f"sqlite:///{tmp_path_factory.mktemp('formats_store') / 'records.sqlite'}"),
    )


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.float64])
def test_a_call_takes_every_format(masked_add, dtype):
    """Eagerly and under vmap: the output has the dtype of the input, and whole numbers wrap."""
    x = (torch.arange(24).reshape(2, 3, 4) * 37).to(dtype)
    bias, mask = torch.full((4,), 100).to(dtype), torch.arange(24).reshape(2, 3, 4) % 3 == 0
    wanted = (x + bias).where(mask, x)
    assert masked_add(x, bias, mask).dtype == dtype and torch.equal(masked_add(x, bias, mask), wanted)
    assert torch.equal(torch.vmap(masked_add, in_dims=(0, None, 0))(x, bias, mask), wanted)


def test_a_gradient_of_float64_is_float64(masked_add):
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(4, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(3, 4) < 0.5
    assert torch.autograd.gradcheck(lambda a, b: masked_add(a, b, mask), (x, bias))
