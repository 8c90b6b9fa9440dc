"""Whole numbers, True and False: compared exactly, and an index among equals by the rule that the definition states."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from opforge.core.definition.operator import Case, Operator, TensorSpec, Ties
from opforge.core.language.errors import UsageError
from opforge.registry import load
from opforge.runner import Isolated
from opforge.verify import CaseCache, compare, consult, verify
from opforge.verify.cases.hidden import QUICK

EXPERTS = 50257


def routing(rule, k=1, dtype="int64"):
    return Operator(
        name="route",
        about="",
        inputs=(TensorSpec(name="x", shape="rows experts"),),
        outputs=(
            TensorSpec(
                name="index",
                shape="rows" if k == 1 else "rows k",
                dtype=dtype,
                ties=Ties(rule=rule, scores="x") if rule else None,
            ),
        ),
        reference=(lambda x: x.argmax(dim=-1)) if k == 1 else (lambda x: x.topk(k, dim=-1).indices),
        flops="rows * experts",
        derived={} if k == 1 else {"k": str(k)},
        cases=(Case(name="one", axes={"rows": 4, "experts": EXPERTS}, why="GPT-2's vocabulary"),),
    )


def expectation(operator, x):
    case = dataclasses.replace(
        operator.cases[0], axes={**operator.cases[0].axes, "rows": x.shape[0], "experts": x.shape[1]}
    )
    return consult(operator, case, "float32", {"x": x}).expectations[0]


def test_an_index_that_is_one_off_is_wrong_among_fifty_thousand():
    """The bound of a float of that size let 50255 pass for 50256."""
    x = torch.zeros(4, EXPERTS)
    x[:, EXPERTS - 2] = 1.0
    (e,) = (expectation(routing(None), x),)
    right = torch.full((4,), EXPERTS - 2)
    assert compare(right, e).agrees
    off = right.clone()
    off[2] += 1
    found = compare(off, e)
    assert (
        found.wrong.tolist() == [False, False, True, False]
        and found.metrics.worst_index == (2,)
        and found.metrics.worst_ratio == float("inf")
    )


def test_int64_is_compared_beyond_what_float64_holds():
    """2^53 + 1 is 2^53 in float64."""
    operator = Operator(
        name="same",
        about="",
        inputs=(TensorSpec(name="x", shape="n", dtype="int64", below="n"),),
        outputs=(TensorSpec(name="y", shape="n", dtype="int64"),),
        reference=lambda x: x,
        flops="n",
        cases=(Case(name="c", axes={"n": 2}, why=""),),
    )
    x = torch.tensor([2**53 + 1, 3])
    (e,) = consult(operator, operator.cases[0], "float32", {"x": x}).expectations
    assert compare(x, e).agrees and compare(x - torch.tensor([1, 0]), e).wrong.tolist() == [True, False]


@pytest.mark.parametrize(("rule", "accepted"), [("first", [1]), ("last", [4]), ("any", [1, 3, 4])])
def test_the_rule_for_ties_says_which_of_the_equals_is_right(rule, accepted):
    x = torch.tensor([[0.0, 2.0, 1.0, 2.0, 2.0, -1.0]])
    e = expectation(routing(rule), x)
    assert [i for i in range(-1, 7) if compare(torch.tensor([i]), e).agrees] == accepted


@pytest.mark.parametrize("rule", ["first", "last", "any"])
def test_the_rule_for_ties_holds_for_several_of_a_row(rule):
    """Against a loop that shares no code with it: of 200 rows with many equal scores, every answer of the rule is
    right, and no other is.
    """
    torch.manual_seed(3)
    x = torch.randint(0, 4, (200, 9)).float()
    x[7, 2] = float("nan")
    e = expectation(routing(rule, k=3), x)

    def key(row, i):
        value = float(row[i])
        return (-(10.0 if value != value else value), {"first": i, "last": -i, "any": 0}[rule])

    answer = torch.tensor([sorted(range(9), key=lambda i: key(row, i))[:3] for row in x])
    assert compare(answer, e).agrees
    # swapping an answer for an index that was not chosen is right for "any" alone, and there only with an equal score
    for row in range(20):
        for other in set(range(9)) - set(answer[row].tolist()):
            changed = answer.clone()
            changed[row, 2] = other
            assert compare(changed, e).agrees == (
                rule == "any" and float(x[row, other]) == float(x[row, answer[row, 2]])
            )
    twice = answer.clone()
    twice[:, 1] = twice[:, 0]
    assert bool(compare(twice, e).wrong[:, 1].all())


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_a_code_that_is_one_off_is_wrong_in_fp8(dtype):
    """The steps are coarse, and the bound is half of one: no neighbour of the right code is inside it, unless the value
    lies half-way between the two.
    """
    operator = Operator(
        name="narrow",
        about="",
        inputs=(TensorSpec(name="x", shape="n", dtype="float32"),),
        outputs=(TensorSpec(name="q", shape="n", dtype=dtype),),
        reference=lambda x: x,
        flops="n",
        cases=(Case(name="c", axes={"n": 1}, why=""),),
    )
    codes = torch.arange(1, 0x77 if dtype == "float8_e4m3fn" else 0x7B, dtype=torch.uint8)
    values = codes.view(getattr(torch, dtype)).float()
    values = values * (1 + 0.4 * (torch.rand(len(codes), generator=torch.Generator().manual_seed(2)) - 0.5) / 16)
    right = values.to(getattr(torch, dtype))
    case = dataclasses.replace(operator.cases[0], axes={"n": len(codes)})
    (e,) = consult(operator, case, "float32", {"x": values}).expectations
    assert compare(right, e).agrees
    for step in (1, 255):
        off = (right.view(torch.uint8) + step).view(getattr(torch, dtype))
        assert int(compare(off, e).wrong.sum()) == len(codes)


def test_a_rule_that_nobody_knows_is_named():
    with pytest.raises(UsageError, match=r"any, first, last"):
        routing("lowest")
    with pytest.raises(UsageError, match="name of an input"):
        dataclasses.replace(
            routing("any"),
            outputs=(TensorSpec(name="index", shape="rows", dtype="int64", ties=Ties(rule="any", scores="z")),),
        )


DEFINITION = """
from opforge.core.operator import Case, Operator, TensorSpec, Ties

operator = Operator(
    name="rt_route",
    about="the expert of the largest score, and whether it is positive",
    inputs=(TensorSpec(name="x", shape="rows experts"),),
    outputs=(TensorSpec(name="index", shape="rows", dtype="int32", ties=Ties(rule="first", scores="x")),
    TensorSpec(name="positive", shape="rows experts", dtype="bool")),
    reference=lambda x: (x.argmax(dim=-1), x > 0),
    flops="rows * experts",
    dtypes=("float32", "float16"),
    cases=(Case(name="wide", axes={"rows": 3, "experts": 50257}, why="an index beyond what a bound tells apart"),
    Case(name="small", axes={"rows": 9, "experts": 33}, why="ties")),
    implementations=("torch_right", "torch_off", "torch_turned"),
)
"""


def test_a_kernel_of_indices_and_booleans_is_judged_exactly(tmp_path):
    """As a user runs it: the right one passes, one index off and a boolean that is turned over do not. Both are wrong
    for nearly every draw of the inputs: three maxima of 50257 lie below 1000 once in 126 thousand.
    """
    folder = tmp_path / "rt_route"
    folder.mkdir()
    (folder / "op.py").write_text(DEFINITION)
    right = (
        "import torch\n\n\ndef run(x):\n    index, positive = x.argmax(dim=-1).int(), x > 0\n    {}\n    return "
        "index, positive\n"
    )
    (folder / "torch_right.py").write_text(right.format("pass"))
    (folder / "torch_off.py").write_text(right.format("index = torch.where(index > 1000, index - 1, index)"))
    (folder / "torch_turned.py").write_text(right.format("positive.view(-1)[-1:] ^= True"))
    registry = load([tmp_path])
    with Isolated() as host:
        bench = CaseCache(registry=registry, operator=registry.operator("rt_route"), host=host, device="cpu")
        found = {
            item.name: type(verify(bench, item, "float16", effort=dataclasses.replace(QUICK, own=True))).__name__
            for item in registry.implementations("rt_route")
            if item.backend == "torch"
        }
        bench.close()
    assert found == {"torch_right": "Pass", "torch_off": "Mismatch", "torch_turned": "Mismatch"}
