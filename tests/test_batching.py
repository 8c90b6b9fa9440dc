"""torch.vmap over operators: one larger call where the leading axis is a batch, entry by entry elsewhere, right in
both.
"""

from __future__ import annotations

import pytest
import torch

from opforge.core.definition.operator import Case, Operator, TensorSpec
from opforge.dispatch import Chooser, function_of
from opforge.dispatch.batching import Batching, leading_inputs
from opforge.registry import load
from opforge.verify import compare, consult


@pytest.fixture(scope="module")
def chooser():
    return Chooser(load())


class Counted:
    """Counts the calls of an operator's reference, as the custom operator would be called."""

    def __init__(self, operator):
        self.operator, self.calls = operator, 0

    def __call__(self, *tensors):
        self.calls += 1
        return self.operator.reference(*tensors)


class Info:
    batch_size = 4


def operator(reference, *, shape="*shape", weight=""):
    inputs = (TensorSpec(name="x", shape=shape), *([TensorSpec(name="w", shape=weight)] if weight else []))
    cases = (Case(name="plain", axes={"shape": (7,), "lead": (3,), "cols": 5}, why="plain"),)
    return Operator(
        name="batched",
        about="",
        inputs=inputs,
        outputs=(TensorSpec(name="y", shape=shape),),
        reference=reference,
        flops="1",
        cases=cases,
    )


def test_an_operator_element_by_element_is_called_once():
    """Four entries are one tensor with one axis more."""
    counted = Counted(operator(lambda x: x * x))
    x = torch.randn(3, 4, 5)
    found, place = Batching(operator=counted.operator, call=counted)(Info, (1,), x)
    assert counted.calls == 1 and place == 0 and torch.equal(found, (x * x).movedim(1, 0))


def test_rows_that_hang_together_are_not_put_into_one_call():
    """A cumulative sum over everything would run from one entry into the next."""
    counted = Counted(operator(lambda x: x.flatten().cumsum(0).reshape(x.shape)))
    x = torch.randn(4, 6)
    found, _ = Batching(operator=counted.operator, call=counted)(Info, (0,), x)
    assert counted.calls == 4 and torch.allclose(found, x.cumsum(1))


@pytest.mark.parametrize(("dims", "calls"), [((0, None), 1), ((0, 0), 4), ((None, 0), 4)])
def test_an_input_without_rows_decides(dims, calls):
    """One weight for all entries goes along; a weight for each entry makes each a call of its own."""
    counted = Counted(operator(lambda x, w: x * w, shape="*lead cols", weight="cols"))
    x, w = (
        torch.randn(4, 3, 5) if dims[0] == 0 else torch.randn(3, 5),
        torch.randn(4, 5) if dims[1] == 0 else torch.randn(5),
    )
    found, _ = Batching(operator=counted.operator, call=counted)(Info, dims, x, w)
    assert counted.calls == calls
    assert torch.allclose(found, torch.vmap(lambda a, b: a * b, in_dims=dims)(x, w))


def test_a_product_of_matrices_has_no_leading_axis(chooser):
    """Its rows are one axis of two in each input."""
    assert leading_inputs(chooser.registry.operator("matmul")) is None
    assert leading_inputs(chooser.registry.operator("layernorm")) == (True, False, False)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_functions_under_vmap_are_right(chooser, dim):
    """As users call it, whichever axis is the batch; several outputs keep their places."""
    x = torch.randn(3, 4, 5)
    softmax, mean_var = function_of("softmax", chooser), function_of("mean_var", chooser)
    moved = x.movedim(dim, 0)
    for function in (softmax, mean_var):
        returned = torch.vmap(function, in_dims=dim)(x)
        case = Case(name="batch", axes={"lead": tuple(moved.shape[:-1]), "cols": moved.shape[-1]}, why="a batch")
        expected = consult(function.operator, case, "float32", {"x": moved}).expectations
        found = returned if isinstance(returned, tuple) else (returned,)
        assert len(found) == len(expected)
        # by the operator's own bound, element by element
        assert all(compare(one, truth).agrees for one, truth in zip(found, expected, strict=True))


def test_vmap_within_vmap(chooser):
    """Two batch axes are two calls of the rule."""
    x, relu = torch.randn(2, 3, 5), function_of("relu", chooser)
    assert torch.equal(torch.vmap(torch.vmap(relu))(x), torch.relu(x))


def test_no_entries_at_all_have_the_shape_of_one(chooser):
    """The last batch of a filter that let nothing pass: an operator that is called entry by entry has nothing
    to stack.
    """
    matmul, cross_entropy = function_of("matmul", chooser), function_of("cross_entropy", chooser)
    assert torch.vmap(matmul, in_dims=(2, None))(torch.empty(5, 4, 0), torch.empty(4, 3)).shape == (0, 5, 3)
    found = torch.vmap(cross_entropy)(torch.empty(0, 3, 6, dtype=torch.bfloat16), torch.empty(0, 3, dtype=torch.long))
    assert found.shape == (0, 3) and found.dtype == torch.bfloat16


@pytest.mark.campaign
@pytest.mark.parametrize("name", ["softmax", "mean_var"])
def test_the_first_vmap_may_be_inside_torch_compile(name):
    """Whether rows hang together is asked on numbers; tensors without content gave no answer."""
    x, function = torch.randn(3, 4, 5), function_of(name, Chooser(load()))
    found = torch.compile(torch.vmap(function), backend="aot_eager", fullgraph=True)(x)
    wanted = torch.vmap(function)(x)
    torch.testing.assert_close(found, wanted)
