"""Convolutions against PyTorch's own in float64, and calls that are refused."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from opforge import ops
from opforge.core.definition.shapes import full_shape
from opforge.core.language.errors import UsageError
from opforge.registry import load

torch_conv2d = torch.nn.functional.conv2d


@pytest.fixture
def functional(front_door):
    from opforge.ops import functional

    return functional


def drawn(operator, case):
    """Inputs of a case in float64 by name, and its parameters."""
    scalars = operator.scalar_values(case.scalars)
    names = [spec for spec in operator.inputs if scalars.get(f"has_{spec.name}", True)]
    return {spec.name: torch.randn(full_shape(spec.shape, case.axes), dtype=torch.float64) for spec in names}, scalars


def test_the_reference_is_pytorchs_convolution_in_every_case():
    """The oracle shares no code with PyTorch's: strides, both paddings, dilations and groups."""
    operator = load().operator("conv2d")
    for case in operator.cases:
        given, scalars = drawn(operator, case)
        steps = {scalar.name: scalars[scalar.name] for scalar in operator.scalars}
        sides = [scalars[f"pad_{side}"] for side in ("left", "right", "top", "bottom")]
        expected = torch_conv2d(
            torch.nn.functional.pad(given["x"], sides),
            given["w"],
            given.get("bias"),
            (scalars["stride_h"], scalars["stride_w"]),
            0,
            (scalars["dilation_h"], scalars["dilation_w"]),
            case.axes["groups"],
        )
        torch.testing.assert_close(operator.reference(given["x"], given["w"], given.get("bias"), **steps), expected)


def test_the_bound_does_not_depend_on_how_much_is_looked_at_together(monkeypatch):
    """Patches of strips of an image, whatever their height, with strips that read nothing but padding."""
    from opforge.definitions.conv import bounds

    operator = load().operator("conv2d")
    for case in operator.cases:
        if case.name not in ("all_differ", "only_padding", "depthwise_7x7", "whole_image", "no_batch"):
            continue
        given, scalars = drawn(operator, case)
        inputs = {"bias": None, **given}
        for together in (1, 1 << 23):
            monkeypatch.setattr(bounds, "TOGETHER", together)
            found = operator.tolerance.errors(inputs, {}, scalars, "float32")["y"]
            if together == 1:
                first = found
        for one, other in ((first.largest, found.largest), (first.typical, found.typical)):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ({"stride_h": 0}, "strides and dilations are 1 or more"),
        ({"pad_left": -1}, "padding is 0 or more"),
        ({"dilation_w": 3}, "the padded image is at least as large as the kernel"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused_with_the_rule(front_door, named, reason):
    """Through the operator; ops.functional raises PyTorch's own error."""
    with pytest.raises(UsageError, match=reason):
        ops.conv2d(torch.randn(1, 2, 4, 4), torch.randn(3, 2, 3, 3), **named)


def test_channels_that_do_not_fit_are_refused(front_door):
    with pytest.raises(UsageError, match=r"channels"):
        ops.conv2d(torch.randn(1, 5, 4, 4), torch.randn(3, 2, 3, 3))


@pytest.mark.parametrize(
    "named",
    [{"groups": 0}, {"padding": -1}, {"stride": 0}, {"dilation": 4}, {"padding": "same", "stride": 2}, {"groups": 2}],
)
def test_pytorchs_errors_are_its_own(functional, named):
    given = torch.randn(1, 2, 4, 4), torch.randn(3, 2, 3, 3)
    with pytest.raises(Exception) as theirs:
        torch_conv2d(*given, **named)
    with pytest.raises(type(theirs.value)) as mine:
        functional.conv2d(*given, **named)
    assert str(mine.value) == str(theirs.value)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_same_padding_and_pairs_go_to_the_operator(functional):
    """An even kernel has one zero more behind than before."""
    x, w = torch.randn(2, 4, 6, 7), torch.randn(6, 2, 4, 2)
    for named in ({"padding": "same"}, {"padding": "valid"}, {"stride": (2, 1), "padding": [1], "dilation": (1, 2)}):
        assert functional.conv2d.why(x, w, groups=2, **named).operator == "conv2d"
        torch.testing.assert_close(functional.conv2d(x, w, groups=2, **named), torch_conv2d(x, w, groups=2, **named))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_one_axis_one_image_and_the_transposed_way_go_to_the_operators(functional):
    """conv1d is a convolution of one row; conv_transpose2d is the gradient of conv2d for its image."""
    torch.manual_seed(0)
    native, x, w = torch.nn.functional, torch.randn(4, 6, 7), torch.randn(4, 3, 2, 3)
    named = {"stride": (2, 1), "padding": 1, "output_padding": (1, 0), "groups": 2, "bias": torch.randn(6)}
    calls = (
        ("conv2d", (x, w.transpose(0, 1)), {"padding": "same"}, "conv2d"),
        ("conv1d", (x, torch.randn(5, 6, 3)), {"stride": 2, "padding": 1, "dilation": 2}, "conv2d"),
        ("conv1d", (x[0], torch.randn(4, 3, 2)), {"groups": 2}, "conv2d"),
        ("conv_transpose2d", (x[None], w), named, "conv2d_input_grad"),
    )
    for name, given, more, operator in calls:
        mine = getattr(functional, name)
        assert mine.why(*given, **more).operator == operator, mine.why(*given, **more)
        torch.testing.assert_close(mine(*given, **more), getattr(native, name)(*given, **more), rtol=1e-5, atol=2e-6)


def test_gradients_are_those_of_the_definition(front_door):
    """By the operators that conv2d names, each against PyTorch's formulas, with a bias and without one."""
    torch.manual_seed(0)
    x, w, b = (torch.randn(*sizes, requires_grad=True) for sizes in ((2, 4, 6, 7), (6, 2, 3, 2), (6,)))
    steps = {"stride_h": 2, "pad_top": 1, "pad_bottom": 1, "pad_left": 1, "pad_right": 1, "dilation_w": 2}
    theirs = torch_conv2d(x, w, b, stride=(2, 1), padding=1, dilation=(1, 2), groups=2)
    incoming = torch.randn_like(theirs)
    for given in ((x, w, b), (x, w)):
        backward = ops.conv2d.backward_of({**ops.conv2d.operator.scalar_values({}), "has_bias": len(given) == 3})
        assert len(backward.parts) == len(given), "each gradient has an operator of its own"
        mine = torch.autograd.grad(ops.conv2d(*given, **steps), given, incoming)
        again = torch_conv2d(*given, stride=(2, 1), padding=1, dilation=(1, 2), groups=2)
        torch.testing.assert_close(mine, torch.autograd.grad(again, given, incoming), rtol=1e-5, atol=5e-6)


@pytest.mark.campaign
def test_a_network_is_compiled_in_one_graph_for_any_batch(functional):
    """Forward and gradients; a second batch size makes the batch a symbol, a third compiles nothing."""
    w, b = torch.randn(6, 3, 3, 3, requires_grad=True), torch.randn(6, requires_grad=True)

    def loss(x):
        return functional.conv2d(x, w, b, padding="same").square().mean()

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch in (2, 3, 5):
        x = torch.randn(batch, 3, 5, 6)
        mine, theirs = (torch.autograd.grad(one(x), (w, b)) for one in (compiled, loss))
        torch.testing.assert_close(mine, theirs)
    torch.library.opcheck(torch.ops.opforge.conv2d.default, (torch.randn(2, 3, 5, 6), w, b))


@pytest.mark.campaign
def test_a_small_resnet_learns_as_on_pytorch(front_door):
    """Steps of training in which every convolution and its gradients are ours, as examples/resnet_training.py shows."""
    path = Path(__file__).resolve().parent.parent / "examples" / "resnet_training.py"
    spec = importlib.util.spec_from_file_location("resnet_training", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    torch.manual_seed(0)
    mine, theirs = example.twins(width=2)
    given = torch.randn(2, 3, 32, 32), torch.tensor([1, 7])
    torch.testing.assert_close(
        example.losses(mine, *given, steps=2), example.losses(theirs, *given, steps=2), rtol=1e-5, atol=0.0
    )
