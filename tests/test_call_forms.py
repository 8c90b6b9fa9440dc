"""Calls that are more than tensors in and tensors out, through definition, kernels, verdicts and PyTorch: inputs that
are overwritten, inputs that may be left away, segments of any length, lists of tensors.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

from opforge.core.definition.operator import Case, TensorSpec
from opforge.core.language.errors import UsageError
from opforge.dispatch.registration import schema_of
from opforge.registry import load
from opforge.registry.call_checks import check_calls
from opforge.runner import allocate, fill
from opforge.verify import CaseCache, verify
from opforge.verify.cases.hidden import QUICK, hidden_cases

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "operators"


def verdicts(host, home, name, kernels, cases, dtype="float32"):
    """What becomes of kernels in PyTorch, given by their text, in some cases of an example."""
    folder = home / name
    shutil.copytree(EXAMPLES / name, folder)
    operator = load([EXAMPLES]).operator(name)
    text = (folder / "op.py").read_text()
    (folder / "op.py").write_text(text.replace(_listed(operator.implementations), _listed(tuple(kernels))))
    for kernel, source in kernels.items():
        (folder / f"{kernel}.py").write_text(f"import torch\n\n\n{source}\n")
    registry = load([home])
    bench = CaseCache(registry=registry, operator=registry.operator(name), host=host, device="cpu")
    asked = [case for case in bench.operator.cases if case.name in cases]
    try:
        return {kernel: verify(bench, registry.implementation(name, kernel), dtype, cases=asked) for kernel in kernels}
    finally:
        bench.close()


def _listed(names):
    return (
        "implementations=("
        + ", ".join(f'"{name}"' for name in names)
        + ",)" * (len(names) == 1)
        + ")" * (len(names) > 1)
    )


STEP = """def run(param, grad, m, v, lr, beta1, beta2, eps, decay, step):
    g = grad.float()
    m.mul_(beta1).add_(g, alpha=1 - beta1)
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    root = (v / (1 - beta2**step)).sqrt_().add_(eps)
    moved = param.float() * (1 - lr * decay)
    param.copy_(torch.addcdiv(moved, m, root, value=-lr / (1 - beta1**step)))
"""


@pytest.mark.slow
def test_what_is_overwritten_is_judged_after_the_call_and_nothing_else_may_change(host, tmp_path):
    """An input left as it was is a wrong answer; another one changed, or memory between its elements, is a breach."""
    kernels = {
        "torch_right": STEP,
        "torch_stale": STEP.replace("v.mul_(beta2).addcmul_", "v = (v * beta2).addcmul_"),
        "torch_grad": STEP + "    grad.zero_()\n",
        "torch_gaps": STEP + "    torch.as_strided(param, (param.numel(),), (1,)).zero_()\n    param.copy_(moved)\n",
        "torch_returns": STEP + "    return param\n",
    }
    found = verdicts(host, tmp_path, "adamw_step", kernels, ("odd_tail", "strided"))
    assert {name: type(verdict).__name__ for name, verdict in found.items()} == {
        "torch_right": "Pass",
        "torch_stale": "Mismatch",
        "torch_grad": "Broken",
        "torch_gaps": "Mismatch",
        "torch_returns": "Broken",
    }
    assert found["torch_stale"].output == "v_out"
    assert "input grad was modified" in found["torch_grad"].reason
    assert "besides what it overwrites (param, m, v)" in found["torch_returns"].reason


def test_memory_between_the_elements_of_what_is_overwritten_is_guarded():
    operator = load([EXAMPLES]).operator("adamw_step")
    case = next(case for case in operator.cases if case.layout == "strided")
    arena = allocate(operator, case, "float32")
    try:
        before = arena.bytes().clone()
        param = arena.tensor("param_out")
        param.fill_(7.0)
        assert arena.violations(before) == []
        # what lies between is random: only where each bit is another one does each byte differ
        torch.as_strided(param, (3,), (1,)).view(torch.int32).bitwise_not_()
        assert arena.violations(before) == ["4 bytes were written between the elements of param"]
    finally:
        arena.close()


def test_one_element_of_a_column_is_overwritten(host):
    """PyTorch calls it contiguous, whatever its step is, and has no bytes of a step of two."""
    registry = load([EXAMPLES])
    bench = CaseCache(registry=registry, operator=registry.operator("adamw_step"), host=host, device="cpu")
    one = Case(name="one_of_a_column", axes={"n": 1}, layout="strided", why="a step of two, and one element")
    try:
        kernel = registry.implementation("adamw_step", "torch_eager")
        verdict = verify(bench, kernel, "bfloat16", cases=[one], effort=QUICK)
    finally:
        bench.close()
    assert type(verdict).__name__ == "Pass", verdict


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"overwrites": "parm"}, "overwrites 'parm', which is no input"),
        ({"shape": "n n"}, "keeps its shape and dtype"),
        ({"overwrites": "m", "dtype": "float32"}, "two outputs overwrite m"),
    ],
)
def test_an_output_overwrites_an_input_of_its_form(changed, words):
    operator = load([EXAMPLES]).operator("adamw_step")
    first, *others = operator.outputs
    with pytest.raises(UsageError, match=words):
        dataclasses.replace(operator, outputs=(dataclasses.replace(first, **changed), *others))
    with pytest.raises(UsageError, match="only outputs do"):
        x = TensorSpec(name="x", shape="n", overwrites="param")
        dataclasses.replace(operator, inputs=(*operator.inputs, x))


def step_inputs(*lead):
    generator = torch.Generator().manual_seed(3)
    param, grad, m, v = (torch.randn(*lead, 65, generator=generator) for _ in range(4))
    return param, grad, m, v.abs() + 0.1


def test_a_call_overwrites_and_returns_nothing(example):
    """PyTorch counts it, so that autograd notices; a tensor that cannot be overwritten is refused."""
    step = example("adamw_step")
    given = step_inputs()
    wanted = step.operator.reference(*given, **step.operator.scalar_values({"lr": 0.1}))
    again = [tensor.clone() for tensor in given]
    assert step(*given, lr=0.1) is None
    torch.testing.assert_close((given[0], given[2], given[3]), wanted)
    assert given[0]._version > 0 and given[1]._version == 0
    parameter = torch.nn.Parameter(again[0])
    with pytest.raises(UsageError, match=r"under torch.no_grad\(\)"):
        step(parameter, *again[1:], lr=0.1)
    with torch.no_grad():
        step(parameter, *again[1:], lr=0.1)
    assert torch.equal(parameter, given[0])
    with pytest.raises(UsageError, match=r"share addresses .* param.clone\(\)"):
        step(torch.zeros(1).expand(65), *again[1:])
    with pytest.raises(UsageError, match="has no gradient"):
        torch.func.jvp(lambda x: (step(x, *again[1:]), x)[1], (given[0],), (given[0],))


def test_pytorch_knows_what_is_overwritten(example):
    """In the schema, in exported programs, under torch.compile and torch.vmap."""
    step = example("adamw_step")
    assert schema_of(step.operator).startswith("(Tensor(a!) param, Tensor grad, Tensor(b!) m, Tensor(c!) v, float lr=")
    assert schema_of(step.operator).endswith("-> ()")

    class Model(torch.nn.Module):
        def forward(self, *tensors):
            step(*tensors)
            return tensors[0] * 2

    given = step_inputs()
    wanted = step.operator.reference(*given, **step.operator.scalar_values({}))[0]
    for made in (
        torch.export.export(Model(), tuple(tensor.clone() for tensor in given)).module(),
        torch.compile(Model(), fullgraph=True, backend="aot_eager"),
    ):
        here = [tensor.clone() for tensor in given]
        torch.testing.assert_close(made(*here), 2 * wanted)
        torch.testing.assert_close(here[0], wanted)
    many = step_inputs(3)
    apart = [[tensor[entry].clone() for tensor in many] for entry in range(3)]
    torch.vmap(lambda *tensors: (step(*tensors), tensors[0])[1])(*many)
    for entry, tensors in enumerate(apart):
        step(*tensors)
        assert torch.equal(many[0][entry], tensors[0])
    with pytest.raises(UsageError, match="Give it a batch too"):
        torch.vmap(lambda *rest: (step(many[0][0], *rest), rest[0])[1])(*many[1:])


@pytest.mark.slow
def test_each_form_of_a_call_is_judged(host, tmp_path):
    """A kernel that is right with all inputs alone is wrong, and is told in which case."""
    body = "def run(x, weight, bias):\n    y = {weighted}\n    return {shifted}\n"
    weighted, shifted = "x.clone() if weight is None else x * weight", "y if bias is None else y + bias"
    kernels = {
        "torch_right": body.format(weighted=weighted, shifted=shifted),
        "torch_zero": body.format(weighted="x * (0 if weight is None else weight)", shifted=shifted),
        "torch_needs": 'SUPPORTS = {"weighted": "has_weight and has_bias"}\n\n\n'
        + body.format(weighted="x * weight", shifted="y + bias"),
    }
    cases = ("no_weight", "no_bias", "transposed", "odd_tail")
    found = verdicts(host, tmp_path, "optional_affine", kernels, cases)
    assert [type(verdict).__name__ for verdict in found.values()] == ["Pass", "Mismatch", "Pass"]
    assert found["torch_zero"].case.name == "no_weight"
    assert [name for name, _ in found["torch_needs"].not_taken] == ["no_weight", "no_bias"]


@pytest.mark.parametrize(
    ("place", "changed", "words"),
    [
        (0, {"optional": True}, "x is optional and comes first"),
        (2, {"shape": "other"}, "other is an axis of no other"),
        (2, {"name": "has_weight"}, "share a name"),
    ],
)
def test_a_call_can_do_without_what_is_optional(place, changed, words):
    operator = load([EXAMPLES]).operator("optional_affine")
    inputs = list(operator.inputs)
    inputs[place] = dataclasses.replace(inputs[place], **changed)
    with pytest.raises(UsageError, match=words):
        dataclasses.replace(operator, inputs=tuple(inputs))


def test_what_is_optional_has_a_case_each_way():
    operator = load([EXAMPLES]).operator("optional_affine")
    cases = tuple(case for case in operator.cases if case.scalars.get("has_bias", True))
    with pytest.raises(UsageError, match=r"bias is optional, and no case is without it.*'has_bias': False"):
        check_calls(dataclasses.replace(operator, cases=cases))
    traffic = [operator.cost({"lead": (8,), "cols": 4}, "float32", {"has_bias": way}) for way in (True, False)]
    assert [(cost.flops, cost.bytes_read) for cost in traffic] == [(64, 128 + 32), (32, 128 + 16)]
    drawn = hidden_cases(operator, "float32", count=40, most_elements=64)
    assert len({(case.scalars["has_weight"], case.scalars["has_bias"]) for case in drawn}) == 4


def test_a_call_leaves_optional_inputs_away(example):
    """By None, at the end, or by naming another; with gradients of what is given."""
    affine = example("optional_affine")
    reference = affine.operator.reference
    x, weight, bias = torch.randn(3, 5, 7), torch.randn(7), torch.randn(7)
    for given in ((x, weight, bias), (x, None, bias), (x, weight), (x,)):
        for _ in range(2):
            torch.testing.assert_close(affine(*given), reference(*given, *(None,) * (3 - len(given))))
    assert torch.equal(affine(x, bias=bias), x + bias)
    assert schema_of(affine.operator) == "(Tensor x, Tensor? weight=None, Tensor? bias=None) -> Tensor"
    a, b = (tensor.clone().requires_grad_() for tensor in (x, bias))
    affine(a, None, b).square().sum().backward()
    torch.testing.assert_close((a.grad, b.grad), (2 * (x + bias), (2 * (x + bias)).sum((0, 1))))
    for wrong, words in (
        (lambda: affine(x, has_bias=True), "bias=None"),
        (lambda: affine(), r"takes 3 tensors \(x, weight or None, bias or None\)"),
        (lambda: affine(x, weight[:3]), "cols = 7, elsewhere it is 3"),
    ):
        with pytest.raises(UsageError, match=words):
            wrong()


def test_pytorch_knows_what_is_optional(example):
    affine = example("optional_affine")
    x, bias = torch.randn(3, 5, 7), torch.randn(3, 7)

    class Model(torch.nn.Module):
        def forward(self, x, bias):
            return affine(x, None, bias)

    wanted = x + bias[0]
    assert torch.equal(torch.export.export(Model(), (x, bias[0])).module()(x, bias[0]), wanted)
    assert torch.equal(torch.compile(Model(), fullgraph=True, backend="aot_eager")(x, bias[0]), wanted)
    torch.testing.assert_close(torch.vmap(Model())(x, bias), x + bias[:, None])
    torch.testing.assert_close(torch.func.grad(lambda b: Model()(x, b).sum())(bias[0]), torch.full((7,), 15.0))
    leaves = x.clone().requires_grad_(), None, bias[0].clone().requires_grad_()
    torch.library.opcheck(torch.ops.opforge.optional_affine.default, leaves)


def test_offsets_have_empty_segments_and_a_long_one():
    """From 0 to the size of the axis, in every distribution and layout, and others for each seed."""
    operator = load([EXAMPLES]).operator("bag_sum")
    drawn = []
    for distribution, layout, axes in (
        ("normal", "contiguous", {"vocab": 9, "d": 3, "n": 400, "bounds": 41, "bags": 40}),
        ("special", "strided", {"vocab": 9, "d": 3, "n": 400, "bounds": 41, "bags": 40}),
        ("twins", "contiguous", {"vocab": 9, "d": 3, "n": 0, "bounds": 3, "bags": 2}),
        ("zeros", "misaligned", {"vocab": 9, "d": 3, "n": 5, "bounds": 2, "bags": 1}),
    ):
        case = Case(name="drawn", axes=axes, why="drawn", distribution=distribution, layout=layout)
        arena = allocate(operator, case, "float32")
        try:
            for seed in (6, 7, 11):
                fill(arena, operator, case, seed)
                offsets = arena.tensor("offsets").clone()
                assert (int(offsets[0]), int(offsets[-1])) == (0, axes["n"])
                assert bool((offsets.diff() >= 0).all())
                drawn.append(offsets)
        finally:
            arena.close()
    for offsets in drawn[:6]:
        lengths = offsets.diff()
        assert int((lengths == 0).sum()) >= 3 and int(lengths.max()) >= 150
    assert not torch.equal(drawn[0], drawn[1])


def test_sizes_that_no_offsets_fit_are_refused():
    operator = load([EXAMPLES]).operator("bag_sum")
    for n, bounds, words in ((0, 1, None), (3, 1, "offsets_covers"), (0, 0, "offsets_covers"), (3, 2, None)):
        axes = {"vocab": 4, "d": 2, "n": n, "bounds": bounds, "bags": bounds - 1}
        violated = operator.violated(axes, "float32", {})
        assert (violated and violated.name) == words
    assert all(case.axes["bounds"] >= 1 for case in hidden_cases(operator, "float32", count=40, most_elements=64))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"dtype": "float32"}, "one axis of int32 or int64"),
        ({"shape": "bounds 2"}, "one axis of int32 or int64"),
        ({"offsets": "rows"}, "along 'rows', which is no axis of another input"),
        ({"below": "n"}, "remove the others"),
    ],
)
def test_offsets_cut_an_axis_of_another_input(changed, words):
    operator = load([EXAMPLES]).operator("bag_sum")
    *others, offsets = operator.inputs
    with pytest.raises(UsageError, match=words):
        dataclasses.replace(operator, inputs=(*others, dataclasses.replace(offsets, **changed)))


@pytest.mark.slow
def test_segments_that_are_empty_or_long_are_judged(host, tmp_path):
    """A kernel that skips empty bags leaves poison; one that takes so many rows of a bag at most loses the others."""
    body = """def run(table, indices, offsets):
    y = table.new_{made}(len(offsets) - 1, table.shape[1])
    for bag in range(len(y)):
        rows = table[indices[offsets[bag] : {end}]].float()
        if len(rows):
            y[bag] = rows.sum(0)
    return y
"""
    kernels = {
        "torch_right": body.format(made="zeros", end="offsets[bag + 1]"),
        "torch_skips": body.format(made="ones", end="offsets[bag + 1]"),
        "torch_short": body.format(made="zeros", end="min(offsets[bag + 1], offsets[bag] + 16)"),
    }
    found = verdicts(host, tmp_path, "bag_sum", kernels, ("few", "one_bag", "no_index"))
    assert [type(verdict).__name__ for verdict in found.values()] == ["Pass", "Mismatch", "Mismatch"]


def test_pytorch_takes_ragged_inputs(example):
    """Gradients, torch.compile, torch.export, and torch.vmap over tables."""
    bags = example("bag_sum")
    table, indices, offsets = torch.randn(9, 4), torch.arange(8), torch.tensor([0, 3, 3, 8])
    wanted = torch.stack([table[:3].sum(0), torch.zeros(4), table[3:8].sum(0)])
    leaf = table.clone().requires_grad_()
    y = bags(leaf, indices, offsets)
    torch.testing.assert_close(y, wanted)
    y.square().sum().backward()
    torch.testing.assert_close(leaf.grad, torch.cat([2 * wanted[[0] * 3 + [2] * 5], torch.zeros(1, 4)]))

    class Model(torch.nn.Module):
        def forward(self, *tensors):
            return bags(*tensors)

    given = (table, indices, offsets)
    for made in (
        torch.export.export(Model(), given).module(),
        torch.compile(Model(), fullgraph=True, backend="aot_eager"),
    ):
        torch.testing.assert_close(made(*given), wanted)
    tables = torch.stack([table, 2 * table])
    torch.testing.assert_close(
        torch.vmap(bags, in_dims=(0, None, None))(tables, indices, offsets), torch.stack([wanted, 2 * wanted])
    )
    with pytest.raises(UsageError, match="offsets_covers"):
        bags(table, indices, torch.tensor([0]))


@pytest.mark.slow
def test_each_tensor_of_a_list_is_judged(host, tmp_path):
    """One that is left out, in a list that is overwritten too, is a wrong answer with its place."""
    body = "def run(xs):\n    return torch.cat({taken}, dim=1)\n"
    kernels = {
        "torch_right": body.format(taken="xs"),
        "torch_swapped": body.format(taken="[*xs[1:], xs[0]]"),
        "torch_two": 'SUPPORTS = {"two": "len(widths) == 2"}\n\n\n' + body.format(taken="[xs[0], xs[1]]"),
    }
    found = verdicts(host, tmp_path, "concat_rows", kernels, ("two", "many", "rows"))
    assert [type(verdict).__name__ for verdict in found.values()] == ["Pass", "Mismatch", "Pass"]
    assert [name for name, _ in found["torch_two"].not_taken] == ["many"]
    step = (EXAMPLES / "adamw_list" / "torch_foreach.py").read_text()
    kernels = {
        "torch_right": step,
        "torch_first": step.replace("_copy_(params, moved)", "_copy_(params[:1], moved[:1])"),
        "torch_grads": step + "    grads[-1].zero_()\n",
    }
    found = verdicts(host, tmp_path, "adamw_list", kernels, ("two",))
    assert [type(verdict).__name__ for verdict in found.values()] == ["Pass", "Mismatch", "Broken"]
    assert found["torch_first"].output == "params_out_1" and "grads_1 was modified" in found["torch_grads"].reason


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("xs", {"shape": "rows widths*2"}, "no products"),
        ("xs", {"many": "cols"}, "has that axis once"),
        ("xs", {"optional": True}, "it is not optional"),
        ("y", {"shape": "rows widths"}, r"derived={\"total\": \"sum\(sizes\)\"}"),
        ("y", {"shape": "rows widths", "many": "widths"}, "let it overwrite one"),
    ],
)
def test_a_list_has_an_axis_of_its_own(name, changed, words):
    operator = load([EXAMPLES]).operator("concat_rows")

    def other(specs):
        return tuple(dataclasses.replace(spec, **changed) if spec.name == name else spec for spec in specs)

    with pytest.raises(UsageError, match=words):
        dataclasses.replace(operator, inputs=other(operator.inputs), outputs=other(operator.outputs))


def test_hidden_cases_draw_how_many_tensors_a_list_has():
    operator = load([EXAMPLES]).operator("concat_rows")
    drawn = hidden_cases(operator, "float32", count=40, most_elements=256)
    assert len({len(case.axes["widths"]) for case in drawn}) >= 3
    assert all(case.axes["total"] == sum(case.axes["widths"]) for case in drawn)
    axes = {"rows": 7, "widths": (3, 0, 5), "total": 8}
    assert operator.cost(axes, "float32").bytes_read == operator.cost(axes, "float32").bytes_written == 7 * 8 * 4
    with pytest.raises(UsageError, match="widths is empty"):
        check_calls(
            dataclasses.replace(
                operator, cases=(*operator.cases, Case(name="none", axes={"rows": 1, "widths": ()}, why="no tensor"))
            )
        )


def test_a_call_gives_a_list(example):
    """Of any length, with a gradient for each of its tensors; what is no such list is refused."""
    concat = example("concat_rows")
    a, b, c = torch.randn(3, 4), torch.randn(3, 2), torch.randn(3, 5)
    for given in ([a, b], [a, b, c], (a,), [b, a], [a, b]):
        assert torch.equal(concat(given), torch.cat(list(given), 1))
    assert schema_of(concat.operator) == "(Tensor[] xs) -> Tensor"
    leaves, weight = [tensor.clone().requires_grad_() for tensor in (a, b)], torch.randn(3, 6)
    (concat(leaves) * weight).sum().backward()
    assert torch.equal(leaves[0].grad, weight[:, :4]) and torch.equal(leaves[1].grad, weight[:, 4:])
    for wrong, words in (
        (a, r"a list of tensors \[rows widths\].*Write xs=\[a, b\]"),
        ([], "at least one"),
        ([a, torch.randn(2, 4)], "rows = 2, elsewhere it is 3"),
    ):
        with pytest.raises(UsageError, match=words):
            concat(wrong)
    many = torch.randn(6, 3, 2)
    together = torch.vmap(lambda each: concat([a, each]))(many)
    assert torch.equal(together, torch.stack([torch.cat([a, each], 1) for each in many]))


def test_pytorch_knows_lists(example):
    """In exported programs and under torch.compile; a list that is overwritten is marked."""
    concat, step = example("concat_rows"), example("adamw_list")

    class Model(torch.nn.Module):
        def forward(self, a, b):
            return concat([a, b, a])

    a, b = torch.randn(3, 4), torch.randn(3, 2)
    wanted = torch.cat([a, b, a], 1)
    assert torch.equal(torch.export.export(Model(), (a, b)).module()(a, b), wanted)
    assert torch.equal(torch.compile(Model(), fullgraph=True, backend="aot_eager")(a, b), wanted)
    assert schema_of(step.operator).startswith("(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] ms")
    first, second = step_inputs(), [tensor[:7].clone() for tensor in step_inputs()]
    given = [list(pair) for pair in zip(first, second, strict=True)]
    wanted = step.operator.reference(*given, **step.operator.scalar_values({}))
    assert step(*given) is None
    torch.testing.assert_close((given[0], given[2], given[3]), wanted)
    with pytest.raises(UsageError, match="lists of one length, not 2 of params and 1 of grads"):
        step(given[0], given[1][:1], *given[2:])
    with pytest.raises(UsageError, match=r"under torch.no_grad\(\)"):
        step([torch.nn.Parameter(tensor) for tensor in given[0]], *given[1:])
