"""Values whose squares leave float32: asked of an operator that claims them, and of no other."""

from __future__ import annotations

import dataclasses

import torch

from opforge.core.definition.operator import Case, Operator, Scalar, TensorSpec, Tolerance
from opforge.registry import load
from opforge.runner import allocate, fill
from opforge.verify import compare, consult
from opforge.verify.cases.extreme_values import withstands


def group_norm(centred: bool, **tolerance):
    """By sums of squares, with a bound that NaN alone fails: what is said of the range is nothing."""

    def reference(x, *, groups):
        rows = x.reshape(x.shape[0], groups, -1)
        mean = rows.mean(-1, keepdim=True)
        var = (rows - mean).square().mean(-1, keepdim=True) if centred else rows.var(-1, keepdim=True, correction=0)
        return ((rows - mean) / torch.sqrt(var + 1e-5)).reshape(x.shape)

    return Operator(
        name="gn",
        about="",
        inputs=(TensorSpec(name="x", shape="n c h w"),),
        outputs=(TensorSpec(name="y", shape="n c h w"),),
        scalars=(Scalar(name="groups", default=4),),
        reference=reference,
        flops="n * c * h * w",
        tolerance=Tolerance(
            factor=8.0, magnitude=lambda inputs, outputs, scalars: {"y": 1e6 + inputs["x"].abs()}, **tolerance
        ),
        cases=(Case(name="few", axes={"n": 2, "c": 8, "h": 32, "w": 16}, why="plain"),),
    )


def answers(operator, kernel, kind):
    """Of twenty draws: asked and right, asked and wrong, not asked."""
    told = set()
    for seed in range(20):
        case = dataclasses.replace(operator.cases[0], distribution=kind, seed=seed)
        arena = allocate(operator, case, "float32")
        fill(arena, operator, case, seed)
        inputs = {name: tensor.clone() for name, tensor in arena.tensors("input").items()}
        arena.close()
        truth = consult(operator, case, "float32", inputs)
        asked = withstands(operator, case, "float32", truth)
        told.add(compare(kernel(*inputs.values()), truth.expectations[0]).agrees if asked else "not asked")
    return told


def pytorch(x):
    return torch.nn.functional.group_norm(x, 4)


def test_one_kernel_has_one_answer_in_twenty_draws():
    """PyTorch's own group norm was wrong in five runs of six: it squares before it takes the mean off."""
    for centred in (True, False):
        assert answers(group_norm(centred), pytorch, "scaled") == {"not asked"}
        assert answers(group_norm(centred), pytorch, "normal") == {True}


def test_an_operator_that_claims_the_range_is_asked():
    """PyTorch's is wrong then, each time."""
    assert answers(group_norm(False, whole_range=True), pytorch, "scaled") == {False}


def test_what_adds_nothing_up_is_asked_as_ever():
    """exp and cubes overflow on the way to a sigmoid or a tanh, and the result is right."""
    registry = load()
    gelu = registry.operator("gelu")
    gelu = dataclasses.replace(gelu, cases=(Case(name="few", axes={"shape": (64,)}, why="plain"),))
    assert "not asked" not in answers(gelu, lambda x: torch.nn.functional.gelu(x), "exponents")
