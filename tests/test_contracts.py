"""Operators as PyTorch functions: gradients, schemas, compilation, clean hands; and the kit for other people's
operators.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.autograd.gradcheck import GradcheckError

from contract_clauses import clauses
from opforge.core.evidence.verdict import Pass
from opforge.registry import load
from opforge.testing import conformance, parametrize, situations
from opforge.verify.extra.contract_gradients import gradcheck, gradients
from opforge.verify.extra.contract_subject import ClauseBroken, Subject


@pytest.mark.parametrize(
    "name",
    ["softmax", pytest.param("matmul", marks=pytest.mark.slow), pytest.param("mean_var", marks=pytest.mark.slow)],
)
def test_operators_keep_their_contracts(name):
    """Everything that does not need a GPU holds; what needs one says so."""
    found = clauses(name, dtypes=["float32", "bfloat16"])
    assert [clause for clause in found.values() if clause.standing == "broken"] == []
    assert {
        found[n].standing
        for n in (
            "gradients (float32)",
            "gradcheck",
            "opcheck",
            "torch.compile(fullgraph=True)",
            "values and memory (bfloat16)",
        )
    } == {"held"}
    if not torch.cuda.is_available():
        assert found["CUDA graph"].standing == "not here" and "GPU" in found["CUDA graph"].detail


def with_graph_break(x):
    torch._dynamo.graph_break()
    return torch.softmax(x, -1)


def with_half_the_gradient_once_compiled(x):
    y = torch.softmax(x, -1)
    return (y + y.detach()) / 2 if torch.compiler.is_compiling() else y


@pytest.mark.parametrize(
    ("function", "broken"),
    [
        (lambda x: torch.softmax(x, -1).detach(), "gradients (float32)"),
        (lambda x: torch.softmax(x, -1) * 1.01, "values and memory (float32)"),
        (lambda x: x.copy_(torch.softmax(x.detach(), -1)), "values and memory (float32)"),
        (lambda x: torch.softmax(x, -1) if x.is_contiguous() else x * 0, "layouts (float32)"),
        (with_graph_break, "torch.compile(fullgraph=True)"),
        (with_half_the_gradient_once_compiled, "torch.compile(fullgraph=True)"),
    ],
    ids=["no gradient", "wrong value", "input modified", "layout ignored", "graph break", "compiled gradient"],
)
def test_broken_promises_are_found(function, broken):
    """Each clause fails on a function that breaks it alone."""
    found = clauses("softmax", function, dtypes=["float32"])
    assert found[broken].standing == "broken", found[broken]


def test_a_scaled_gradient_is_found():
    """Right values, and a backward that is two percent too large."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = torch.softmax(x, -1)
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return 1.02 * y * (g - (g * y).sum(-1, keepdim=True))

    found = clauses("softmax", Scaled.apply, dtypes=["float32"])
    assert found["values and memory (float32)"].standing == "held" and found["gradients (float32)"].standing == "broken"


def off_by_a_hundredth(gradient):
    """The gradient operator with a reference that is one percent too large."""

    def reference(*tensors, **scalars):
        found = gradient.reference(*tensors, **scalars)
        return tuple(one * 1.01 for one in found) if isinstance(found, tuple) else found * 1.01

    return dataclasses.replace(gradient, reference=reference)


@pytest.mark.parametrize(
    "name",
    [
        "softmax",
        "log_softmax",
        "rmsnorm",
        "layernorm",
        "cross_entropy",
        "gelu",
        "silu_mul",
        "attention_varlen",
        pytest.param("attention", marks=pytest.mark.slow),
    ],
)
def test_finite_differences_find_a_reference_that_is_off(name):
    """Rows of one column and sequences without keys, whose gradients are zero, would let it through."""
    registry = load([])
    operator, right = registry.operator(name), registry.gradient_operators(name)
    assert right

    def asked(gradient_operators):
        subject = Subject(
            operator=operator,
            function=None,
            custom=None,
            dtype="float32",
            device="cpu",
            compiler="",
            gradient_operators=gradient_operators,
        )
        return gradcheck(subject)

    assert asked(right)
    with pytest.raises(GradcheckError):
        asked(tuple(map(off_by_a_hundredth, right)))


def broken_gradient(function):
    """What the clause of gradients says in float16 of a softmax; "" where it holds."""
    registry = load()
    subject = Subject(
        operator=registry.operator("softmax"),
        function=function,
        custom=None,
        dtype="float16",
        device="cpu",
        compiler="",
        gradient_operators=registry.gradient_operators("softmax"),
    )
    try:
        gradients(subject)
    except ClauseBroken as broken:
        return str(broken)
    return ""


def softmax_with(backward):
    """A softmax in float16 whose gradient is `backward(y, dy)` of what it returned, both in float64."""

    class Planted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = torch.softmax(x.float(), -1).half()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, dy):
            return backward(ctx.saved_tensors[0].double(), dy.double()).half()

    return Planted.apply


def right_gradient(y, dy):
    return y * (dy - (y * dy).sum(-1, keepdim=True))


def one_number_further(y, dy):
    """Right, but for its largest element: that is the neighbour in float16 of the nearest number, on its far side."""
    exact = right_gradient(y, dy)
    place, nearest = int(exact.abs().argmax()), exact.half()
    further = 1 if nearest.view(-1)[place].abs() > exact.view(-1)[place].abs() else -1
    nearest.view(torch.int16).view(-1)[place] += further
    return nearest


def test_a_gradient_is_held_to_one_rounding_of_what_the_returned_outputs_give():
    """A right gradient is made of y as it is stored, which takes it a unit or two away from that of y in float64. Held
    against that one it was called wrong; with room for it, a number further was right.
    """
    for _ in range(8):
        assert broken_gradient(softmax_with(right_gradient)) == ""
    for wrong in (one_number_further, lambda y, dy: right_gradient(y * (1 + 2**-10), dy)):
        assert broken_gradient(softmax_with(wrong)).startswith("the gradient of x[")
    louder = broken_gradient(lambda x: torch.softmax(x, -1) * (1.01 if x.requires_grad else 1.0))
    assert louder.startswith("where gradients are wanted: y[")


# the kit


@torch.library.custom_op("opforge_tests::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@double.register_fake
def _(x):
    return torch.empty_like(x)


double.register_autograd(lambda ctx, g: g * 2)


@torch.library.custom_op("opforge_tests::no_fake", mutates_args=())
def no_fake(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_a_custom_operator_conforms():
    """Anybody's operator, not only those defined here."""
    found = conformance(double, torch.randn(4, 5, requires_grad=True), reference=lambda x: x * 2, compiler="aot_eager")
    assert found.conforms, str(found)
    assert {"opcheck", "gradients", "compiles"} <= set(found.found)


@pytest.mark.parametrize(
    ("op", "check"),
    [
        (lambda x: x.mul_(2), "inputs unmodified"),
        (lambda x: x, "outputs not aliased"),
        (lambda x: x * 2 + torch.rand(()), "deterministic"),
        (lambda x: x.as_strided(x.shape, (x.shape[1], 1)) * 2, "inputs not contiguous"),
        (lambda x: x * 2.001, "values"),
        (lambda x: x.detach() * 2 + 0 * x, "gradients"),
        (no_fake, "compiles"),
    ],
    ids=["modifies", "aliases", "random", "contiguous only", "wrong", "wrong gradient", "no fake"],
)
def test_the_kit_finds_what_is_broken(op, check):
    """One fault each, found under its own name."""
    found = conformance(op, torch.randn(4, 5, requires_grad=True), reference=lambda x: x * 2, compiler="aot_eager")
    assert found.found[check] is not None
    with pytest.raises(AssertionError, match="does not conform"):
        found.require()


@parametrize("vector_add", backends=("torch",), dtypes=("float32",))
def test_the_suite_as_pytest_parameters(situation):
    """What a guest writes in a test file of theirs."""
    assert isinstance(situation.check(), Pass)


def test_a_guest_s_failure_fails_the_test_with_its_evidence(guest):
    """The message is the evidence, not a traceback through opforge."""
    home = guest(bad="def run(x, bias):\n    return bias.expand_as(x).clone()\n")
    (one,) = situations("guest_add", home=home, backends=("torch",), dtypes=("float32",))
    with pytest.raises(
        pytest.fail.Exception, match=r"guest_add-torch_bad-float32: wrong in case .* expected .* within"
    ):
        one.check()


@pytest.mark.gpu
# PyTorch's own, once in a process: the thread of a backward pass is new to CUDA where its first work is a product
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning")
@pytest.mark.parametrize("name", ["softmax", "matmul", "layernorm", "attention"])
def test_contracts_hold_on_a_gpu(name):
    """Capture in a CUDA graph, and work on the caller's stream behind what was given to it before."""
    found = clauses(name, dtypes=["float32", "float16"], device="cuda")
    assert [clause for clause in found.values() if clause.standing == "broken"] == []
    assert found["CUDA graph"].standing == "held"
