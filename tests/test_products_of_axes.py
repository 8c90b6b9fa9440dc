"""Products of axes in a shape, and tensors of several dtypes in one call."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from opforge.core.definition.shapes import bind_axes, collapsed_shape
from opforge.core.language.errors import UsageError
from opforge.dispatch import Chooser, Function
from opforge.registry import load
from opforge.registry.call_checks import check_calls
from opforge.registry.definition_checks import check_definition
from opforge.runner import Isolated
from opforge.verify import CaseCache, verify
from opforge.verify.cases.hidden import QUICK

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "operators"


@pytest.mark.parametrize(
    ("shapes", "axes"),
    [
        ([("x", "b g*d", (2, 12)), ("w", "d", (4,))], {"b": 2, "g": 3, "d": 4}),
        ([("w", "g", (3,)), ("x", "b g*d", (2, 12))], {"b": 2, "g": 3, "d": 4}),
        ([("x", "*lead 2*d", (5, 7, 12))], {"lead": (5, 7), "d": 6}),
        ([("x", "d*d", (49,))], {"d": 7}),
        # what one product leaves open the other says
        ([("x", "a*b", (6,)), ("y", "b*c", (15,)), ("z", "c", (5,))], {"a": 2, "b": 3, "c": 5}),
    ],
)
def test_one_factor_follows_from_the_size(shapes, axes):
    assert bind_axes(shapes) == axes
    assert all(collapsed_shape(shape, axes)[-1] == sizes[-1] for _, shape, sizes in shapes)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ([("x", "g*d", (12,))], r"g\*d of x leaves g and d open at once"),
        ([("x", "g*d", (13,)), ("w", "d", (4,))], r"x has 13 where its shape says g\*d, and that is no such product"),
        ([("x", "d*d", (48,))], "no such product"),
        ([("x", "2*d", (7,))], "no such product"),
        ([("x", "g*d", (5,)), ("w", "d", (0,))], "no such product"),
    ],
)
def test_a_size_that_is_no_such_product_is_refused(shapes, words):
    with pytest.raises(UsageError, match=words):
        bind_axes(shapes)


def test_a_product_of_several_axes_at_once_is_none():
    """A variadic axis as a factor would leave open how many axes it is."""
    operator = load([EXAMPLES]).operator("rotate_heads")
    for shape, words in (("*tokens heads*2*half", "one axis in one shape"), ("tokens heads**half", "is no axis")):
        changed = dataclasses.replace(operator.inputs[0], shape=shape)
        if "*tokens" in shape:
            changed = dataclasses.replace(changed, shape="*heads heads*2*half")
        with pytest.raises(UsageError, match=words):
            mutated = dataclasses.replace(operator, inputs=(changed, *operator.inputs[1:]))
            check_definition(mutated)
            check_calls(mutated)


@pytest.fixture(scope="module")
def rotate_heads(tmp_path_factory):
    store = f"sqlite:///{tmp_path_factory.mktemp('products_store') / 'records.sqlite'}"
    return Function(load([EXAMPLES]).operator("rotate_heads"), Chooser(load([EXAMPLES]), store))


def test_a_call_takes_bfloat16_beside_float32_with_gradients(rotate_heads):
    """The output has the dtype of x; each gradient that of its own input."""
    x = torch.randn(5, 24).bfloat16().requires_grad_()
    angle = torch.rand(5, 4)
    cos, sin = angle.cos().requires_grad_(), angle.sin().requires_grad_()
    y = rotate_heads(x, cos, sin)
    assert (y.dtype, y.shape) == (torch.bfloat16, x.shape)
    # a rotation keeps lengths; each value is rounded once to bfloat16, which its square shows twice
    once = torch.finfo(torch.bfloat16).eps / 2
    torch.testing.assert_close(
        y.double().square().sum(1), x.double().square().sum(1), rtol=2 * once + once**2 + 2**-20, atol=0
    )
    y.float().square().sum().backward()
    assert [tensor.grad.dtype for tensor in (x, cos, sin)] == [torch.bfloat16, torch.float32, torch.float32]
    with pytest.raises(UsageError, match="takes cos as float32"):
        rotate_heads(x, cos.bfloat16(), sin)
    with pytest.raises(UsageError, match="no such product"):
        rotate_heads(x[:, :23], cos, sin)


def test_many_calls_at_once_agree_with_one_by_one(rotate_heads):
    x, angle = torch.randn(3, 5, 24), torch.rand(3, 5, 4)
    together = torch.vmap(rotate_heads)(x, angle.cos(), angle.sin())
    assert torch.equal(
        together, torch.stack([rotate_heads(a, b.cos(), b.sin()) for a, b in zip(x, angle, strict=True)])
    )


@pytest.mark.parametrize("name", ["torch_eager", "cpp_tokens", "triton_heads"])
@pytest.mark.first_only
def test_the_example_passes(name):
    """Hidden cases draw heads and halves each by itself."""
    registry = load([EXAMPLES])
    with Isolated() as host:
        bench = CaseCache(registry=registry, operator=registry.operator("rotate_heads"), host=host, device="cpu")
        verdict = verify(bench, registry.implementation("rotate_heads", name), "bfloat16", effort=QUICK)
        bench.close()
    assert type(verdict).__name__ == "Pass", verdict
