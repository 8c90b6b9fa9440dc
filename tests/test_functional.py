"""Functions with PyTorch's signatures, on PyTorch's own samples of calls."""

from __future__ import annotations

import collections
import os
import subprocess
import sys
import unittest
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as torch_functional

from opforge import ops
from opforge.dispatch import Choice, Chooser, Function
from opforge.registry import load

SAMPLED = {
    "softmax": "softmax",
    "log_softmax": "log_softmax",
    "layer_norm": "nn.functional.layer_norm",
    "rms_norm": "nn.functional.rms_norm",
    "group_norm": "nn.functional.group_norm",
    "embedding": "nn.functional.embedding",
    "cross_entropy": "nn.functional.cross_entropy",
    "gelu": "nn.functional.gelu",
    "silu": "nn.functional.silu",
    "relu": "nn.functional.relu",
    "linear": "nn.functional.linear",
    "matmul": "matmul",
    "bmm": "bmm",
    "baddbmm": "baddbmm",
    "addmm": "addmm",
    "add": "add",
    "conv1d": "nn.functional.conv1d",
    "conv2d": "nn.functional.conv2d",
    "conv_transpose2d": "nn.functional.conv_transpose2d",
    "scaled_dot_product_attention": "nn.functional.scaled_dot_product_attention",
}
"""The functions and PyTorch's names of their samples."""
DTYPES = (torch.float32, torch.bfloat16, torch.float64)


class Kernels(Chooser):
    """The first C++ kernel that takes a call, verified or not, so that what is lowered is not PyTorch's again."""

    def choose(self, operator, axes, dtype, scalars, device, layouts, manner=None):
        for item in self.registry.implementations(operator.name):
            takes = item.backend == "cpp" and all(layout in ("contiguous", *item.layouts) for layout in layouts)
            accepted = takes and type(item.accepts(axes, dtype, scalars)).__name__ == "Accepted"
            if accepted or (item.backend == "torch" and not item.inaccurate):
                return Choice(implementation=item, config=item.default, why="for this test", passed_over=())
        raise AssertionError("every operator has a torch implementation")


@pytest.fixture
def functional(front_door):
    from opforge.ops import functional

    for name in functional.OPERATORS:
        getattr(ops, name)
    return functional


@pytest.fixture
def on_kernels(functional):
    """The same functions on C++ kernels; the front door's own come back at the next test that asks for it."""
    for name in [name for name, value in vars(ops).items() if isinstance(value, Function | Chooser)]:
        del vars(ops)[name]
    vars(ops)["_chooser"] = Kernels(load())
    for name in functional.OPERATORS:
        getattr(ops, name)
    yield functional
    for name in [name for name, value in vars(ops).items() if isinstance(value, Function | Chooser)]:
        del vars(ops)[name]


def samples(name, dtype, requires_grad):
    """PyTorch's samples of a function: (first input, further arguments, named ones)."""
    # PyTorch's own test suite derives its test cases from this package's; the samples use nothing of it
    sys.modules.setdefault("expecttest", SimpleNamespace(TestCase=unittest.TestCase))
    from torch.testing._internal.common_methods_invocations import op_db

    (info,) = (info for info in op_db if info.name == SAMPLED[name] and not info.variant_test_name)
    if dtype not in info.supported_dtypes("cpu"):
        return
    torch.manual_seed(0)
    for sample in info.sample_inputs("cpu", dtype, requires_grad=requires_grad):
        if name == "embedding":
            # the samples have the table first
            yield sample.args[0], (sample.input, *sample.args[1:]), sample.kwargs
            continue
        yield sample.input, sample.args, sample.kwargs


def answer(function, given, wants_gradient):
    """The result of a call and the gradients of what wants one; the exception's type where it raises."""
    first, rest, named = given
    torch.manual_seed(2)  # both sides drop the same elements
    leaves = [item for item in (first, *rest, *named.values()) if isinstance(item, torch.Tensor) and item.requires_grad]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = function(first, *rest, **named)
        except Exception as error:
            return type(error)
    if not wants_gradient or not result.requires_grad:
        return (result.detach(),)
    generator = torch.Generator().manual_seed(1)
    incoming = torch.randn(result.shape, generator=generator, dtype=torch.float64).to(result.dtype)
    return result.detach(), *torch.autograd.grad(result, leaves, incoming, allow_unused=True)


def same(mine, theirs):
    """Within torch.testing's bounds for the dtype, twice over: both sides are rounded."""
    if isinstance(mine, type) or isinstance(theirs, type):
        return mine is theirs
    rtol, atol = {torch.bfloat16: (4e-2, 4e-2), torch.float32: (1e-4, 1e-4)}.get(theirs[0].dtype, (1e-9, 1e-9))
    try:
        torch.testing.assert_close(mine, theirs, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError:
        return False
    # of no elements the strides are nobody's
    return mine[0].numel() == 0 or mine[0].stride() == theirs[0].stride()


def run_samples(functional, names, dtypes, most):
    """{(name, dtype, gradient): counts of samples, lowered ones, right ones}, and what was wrong."""
    table, wrong = collections.defaultdict(collections.Counter), []
    native = {
        **{name: getattr(torch_functional, name, None) for name in SAMPLED},
        **{name: getattr(torch, name) for name in ("matmul", "bmm", "baddbmm", "addmm", "add")},
    }
    for name in names:
        for dtype in dtypes:
            for gradient in (False, True):
                for place, given in enumerate(samples(name, dtype, gradient)):
                    if place == most:
                        break
                    count = table[name, dtype, gradient]
                    count["samples"] += 1
                    mine = answer(functional.FUNCTIONS[name], given, gradient)
                    theirs = answer(native[name], given, gradient)
                    count["taken"] += not isinstance(mine, type) or isinstance(theirs, type)
                    if same(mine, theirs):
                        count["right"] += 1
                        first, rest, named = given
                        route = functional.FUNCTIONS[name].why(first, *rest, **named)
                        count["operator"] += bool(route.operator)
                        count["kernel"] += bool(route.choice) and route.choice.implementation.backend != "torch"
                    else:
                        wrong.append((name, dtype, gradient, place, mine, theirs))
    return table, wrong


def test_a_few_of_pytorchs_samples_of_each_function(functional):
    """The whole of them, on kernels: the campaign below."""
    table, wrong = run_samples(functional, SAMPLED, (torch.float32,), most=4)
    assert not wrong, wrong[0]
    assert {name for name, _, _ in table} == set(SAMPLED)
    assert sum(count["operator"] for count in table.values()) > 20


@pytest.mark.parametrize(
    ("dtypes", "least"),
    [pytest.param(DTYPES[:2], 450, marks=pytest.mark.campaign), pytest.param(DTYPES, 700, marks=pytest.mark.slow)],
)
def test_all_of_pytorchs_samples_on_kernels(on_kernels, capsys, dtypes, least):
    """At least 95 % are taken and all are right; the table says how many by an operator of ours."""
    table, wrong = run_samples(on_kernels, SAMPLED, dtypes, most=None)
    kinds = ("samples", "taken", "right", "operator", "kernel")
    sums = {name: sum((table[key] for key in table if key[0] == name), collections.Counter()) for name in SAMPLED}
    total = sums["all"] = sum(table.values(), collections.Counter())
    with capsys.disabled():
        print("\n| function | samples | taken | right | by an operator | on a kernel of ours |\n|" + " --- |" * 6)
        for name, count in sums.items():
            print(f"| {name} |", " | ".join(str(count[kind]) for kind in kinds), "|")
    assert not wrong, (len(wrong), wrong[0])
    assert total["samples"] > least and total["taken"] >= 0.95 * total["samples"]
    assert total["kernel"] >= 100


@pytest.mark.parametrize(
    ("name", "arguments", "named", "words"),
    [
        ("softmax", (torch.randn(2, 3), -1), {}, "softmax → torch_eager: nothing else is verified"),
        ("softmax", (torch.randn(2, 3).t(), 0), {}, "softmax → torch_eager"),
        ("softmax", (torch.randn(2, 3), 0), {}, "softmax → torch: dim 0 is not the innermost in memory"),
        ("softmax", (torch.randn(2, 3).double(), 1), {}, "torch: softmax has no torch.float64"),
        ("layer_norm", (torch.randn(2, 3), (3,)), {}, "torch: the operator takes a weight and a bias"),
        ("rms_norm", (torch.randn(2, 3).half(), (3,), torch.ones(3).half()), {}, "torch: no eps is given"),
        ("cross_entropy", (torch.randn(2, 3), torch.tensor([0, 1]), torch.ones(3)), {}, "torch: .*no class weights"),
        ("linear", (torch.randn(2, 3), torch.randn(4, 3)), {}, "matmul → torch_definition"),
        ("linear", (torch.randn(2, 3), torch.randn(4, 3, requires_grad=True)), {}, "torch: a gradient is wanted"),
        (
            "add",
            (torch.randn(2, 3), torch.randn(2, 1)),
            {},
            "torch: the other operand is no real number; the other operand has not the shape of the last axes",
        ),
        ("relu", (torch.randn(2, 3),), {"inplace": True}, "torch: the operator makes its result"),
    ],
)
def test_why_says_which_operator_or_why_pytorch(functional, name, arguments, named, words):
    import re

    assert re.search(words, str(functional.FUNCTIONS[name].why(*arguments, **named)))


def test_signatures_are_pytorchs(functional):
    """Names, order and defaults; a call by keyword goes the same way."""
    import inspect

    for name in ("softmax", "log_softmax", "layer_norm", "rms_norm", "cross_entropy", "silu", "relu"):
        ours, theirs = (
            inspect.signature(function).parameters
            for function in (functional.FUNCTIONS[name], getattr(torch_functional, name))
        )
        assert [(one.name, one.default) for one in ours.values()] == [
            (one.name, one.default) for one in theirs.values()
        ]
    x = torch.randn(2, 3)
    assert torch.equal(functional.softmax(input=x, dim=-1), x.softmax(-1))
    assert functional.softmax.why(input=x, dim=-1).operator == "softmax"


def test_errors_are_pytorchs(functional):
    x = torch.randn(2, 3)
    with pytest.raises(IndexError, match="Dimension out of range"):
        functional.softmax(x, dim=5)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        functional.matmul(x, x)
    with pytest.raises(RuntimeError, match="normalized_shape"):
        functional.layer_norm(x, (4,), torch.ones(4), torch.ones(4))
    with pytest.raises(TypeError):
        functional.softmax(x, 1, 2, 3, 4)


def test_autocast_decides_as_in_pytorch(functional):
    x, w = torch.randn(2, 3), torch.randn(4, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for call in (lambda f: f.linear(x, w), lambda f: f.softmax(x.bfloat16(), dim=-1)):
            assert call(functional).dtype == call(torch_functional).dtype
        assert "autocast" in functional.linear.why(x, w).reason


@pytest.mark.campaign  # it compiles a kernel
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("heads", [True, False])
def test_attention_s_masks_are_lowered(on_kernels, kind, heads):
    """Of every shape that PyTorch broadcasts; a mask that wants a gradient, and dropout, stay PyTorch's."""
    make = torch.Generator().manual_seed(3)
    lead = (2, 4) if heads else (2,)
    q = torch.randn(*lead, 6, 8, generator=make)
    k, v = (torch.randn(*lead, 9, 8, generator=make) for _ in range(2))
    shapes = [(6, 9), (1, 9), (*lead, 6, 9), (2, *(1 for _ in lead[1:]), 6, 9)]
    for shape in shapes:
        mask = torch.rand(shape, generator=make) > 0.4 if kind == "bool" else torch.randn(shape, generator=make)
        route = on_kernels.scaled_dot_product_attention.why(q, k, v, attn_mask=mask)
        assert route.operator == "attention" and route.choice.implementation.backend == "cpp", route
        mine = on_kernels.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        assert torch.allclose(mine, torch_functional.scaled_dot_product_attention(q, k, v, mask), atol=1e-5), shape
    for named in ({"attn_mask": torch.zeros(6, 9, requires_grad=True)}, {"dropout_p": 0.5}):
        assert not on_kernels.scaled_dot_product_attention.why(q, k, v, **named).operator


STANDS_FOR = """
from opforge.core.operator import Case, Like, Lowered, Operator, TensorSpec, Tolerance, Workload


def reference(x):
    return x / (1 + x.abs())


def lower(input):
    return Lowered((input,)) if input.ndim == 2 else "it takes two axes"


operator = Operator(
    name="guest_softsign",
    about="x / (1 + |x|)",
    inputs=(TensorSpec(name="x", shape="rows cols"),),
    outputs=(TensorSpec(name="y", shape="rows cols"),),
    reference=reference,
    flops="3 * rows * cols",
    tolerance=Tolerance(roundings=3),
    cases=(Case(name="odd", axes={"rows": 3, "cols": 5}, why="no whole block"),),
    workloads=(Workload(name="tiny", axes={"rows": 8, "cols": 8}, source="made for tests", scale="laptop"),),
    implementations=("torch_eager",),
    like=(Like(function="torch.nn.functional.softsign", lower=lower),),
    grid=(Workload(name="odd", axes={"rows": 9, "cols": 7}, source="shape class: odd", scale="laptop"),),
)
"""


def test_a_new_folder_is_listed_dispatched_and_stands_for_its_function(tmp_path):
    """One folder is enough: no list of operators, functions or shapes elsewhere has to be told of it."""
    folder = tmp_path / "guest_softsign"
    folder.mkdir()
    (folder / "op.py").write_text(STANDS_FOR)
    (folder / "torch_eager.py").write_text("def run(x):\n    return x / (1 + x.abs())\n")
    code = (
        "import torch\nfrom opforge import ops\nfrom opforge.ops import functional as F\n"
        "from opforge.core.definition.shape_classes import shape_grid\n"
        "x = torch.randn(3, 5)\n"
        "assert 'guest_softsign' in dir(ops) and torch.equal(F.softsign(x), torch.nn.functional.softsign(x))\n"
        "print(F.softsign.why(x).operator, '|', F.softsign.why(x[0]).reason, '|', F.softsign.why(x.double()).reason)\n"
        "print(*(item.name for item in shape_grid(ops.guest_softsign.operator, cpu=True)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "OPFORGE_HOME": str(tmp_path)},
        check=False,
    )
    assert done.stdout.splitlines() == [
        "guest_softsign | it takes two axes | guest_softsign has no torch.float64",
        "grid_odd",
    ], done.stderr


def test_what_is_kept_of_a_call_is_asked_again_where_values_gradients_or_strides_differ(functional):
    """The second call of a class is not lowered anew; a target without a class, a gradient and a transposed matrix are
    other calls.
    """
    scores, target = torch.randn(3, 5), torch.tensor([0, 4, 2])
    for _ in range(3):
        torch.testing.assert_close(
            functional.cross_entropy(scores, target), torch_functional.cross_entropy(scores, target)
        )
    with pytest.raises(IndexError):
        functional.cross_entropy(scores, torch.tensor([0, 5, 2]))
    x, weight = torch.randn(4, 6), torch.randn(6, 6)
    for matrix in (weight, weight, weight.T, weight.T):
        torch.testing.assert_close(functional.linear(x, matrix), torch_functional.linear(x, matrix))
    for _ in range(2):
        leaf = x.clone().requires_grad_()
        (found,) = torch.autograd.grad(functional.silu(leaf).sum(), leaf)
        (expected,) = torch.autograd.grad(torch_functional.silu(leaf).sum(), leaf)
        torch.testing.assert_close(found, expected)
        assert not functional.silu(x).requires_grad
        with torch.no_grad():
            assert not functional.silu(leaf).requires_grad
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert functional.linear(x, weight).dtype == torch.bfloat16
    assert functional.linear(x, weight).dtype == torch.float32
