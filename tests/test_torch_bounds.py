"""The bound of a reference that is written with PyTorch's functions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from opforge.definitions.bounds.formulas import formula_errors

REFERENCES: dict[str, Callable[..., torch.Tensor]] = {
    "rms": lambda x, w: x * torch.rsqrt(torch.mean(x * x, -1, keepdim=True) + 1e-6) * w,
    "softmax": lambda x, w: functional.softmax(x, dim=-1),
    "method": lambda x, w: x.softmax(-1) * w,
    "layer_norm": lambda x, w: functional.layer_norm(x, (33,), w),
    "rms_norm": lambda x, w: functional.rms_norm(x, (33,), w),
    "linear": lambda x, w: functional.linear(x, w[None]),
    "gelu": lambda x, w: functional.gelu(x, approximate="tanh"),
    "logsumexp": lambda x, w: torch.logsumexp(x, -1),
    "where": lambda x, w: torch.where(x > 0, x, functional.silu(x)),
    "sum": lambda x, w: torch.sum(x * w, dim=-1),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_float32_lies_within_it_and_a_tenth_of_a_percent_does_not(name: str) -> None:
    """Six of seven definitions of a stranger needed a magnitude by hand."""
    torch.manual_seed(1)
    reference = REFERENCES[name]
    inputs = {"x": torch.randn(16, 33, dtype=torch.float64), "w": torch.randn(33, dtype=torch.float64)}
    exact = reference(*inputs.values())
    # inputs as float32 holds them, so that what is left is arithmetic
    inputs = {key: value.float().double() for key, value in inputs.items()}
    exact = reference(*inputs.values())
    bound = formula_errors(reference, inputs, {"y": exact}, {})["y"].largest
    off = (reference(*(value.float() for value in inputs.values())).double() - exact).abs()
    assert bool((off <= bound).all())
    assert bool(((exact * 1e-3).abs() > bound).float().mean() > 0.9)


def test_a_function_that_is_not_known_names_those_that_are() -> None:
    """And the other way to say a bound."""
    x = torch.ones(3, dtype=torch.float64)
    with pytest.raises(NotImplementedError, match=r"does not know torch's special_entr: .*softmax.*`magnitude`"):
        formula_errors(lambda x: torch.special.entr(x), {"x": x}, {"y": x}, {})
