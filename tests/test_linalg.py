"""Linalg text is read rightly or refused with its line: never a part of it, and never another operator."""

from __future__ import annotations

import re

import pytest
import torch
from typer.testing import CliRunner

from linalg_interpreter import Maker, run
from opforge.cli.app import command_line
from opforge.core.language.errors import UsageError
from opforge.forge.program.evaluate import evaluate
from opforge.forge.read.linalg import linalg_in

CALLED = {"f32": "float32", "f16": "float16"}


def held_against_the_interpreter(seed):
    """Whether the reader took the function of this seed; what it says then is what the interpreter computes."""
    text = Maker(seed).text()
    try:
        found = linalg_in(text, "made", "a.mlir")
    except UsageError as error:
        assert re.search(r"a\.mlir, line \d+: ", str(error)), error
        return False
    head = re.search(r"@f\((.*?)\) ->", text)[1]
    arguments = dict(re.findall(r"(%\w+): tensor<([^>]*)>", head))
    kinds = {name: kind.split("x")[-1] for name, kind in arguments.items()}
    sizes = {name: tuple(int(one) for one in kind.split("x")[:-1]) for name, kind in arguments.items()}
    draw = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(size, generator=draw, dtype=torch.float64) for name, size in sizes.items()}
    inputs = {
        name: {tuple(at): float(tensor[tuple(at)]) for at in torch.ones(tensor.shape).nonzero().tolist()}
        for name, tensor in tensors.items()
    }
    expected = run(text, "f", inputs, sizes)
    named = [item.name for item in found.inputs]
    assert named == [name[1:] for name in arguments if name[1:] in named], "inputs stand in the order of arguments"
    given = {name: tensors[f"%{name}"] for name in named}
    results = list(evaluate(found.program(), given, {}).values())
    assert len(results) == len(expected)
    for result, (wanted, kind) in zip(results, expected, strict=True):
        assert found.dtypes == (CALLED[kind],)
        assert {CALLED[kinds[f"%{name}"]] for name in named} <= set(found.dtypes)
        assert result.numel() == len(wanted), text
        full = torch.full(result.shape, torch.nan, dtype=torch.float64)
        for at, number in wanted.items():
            full[at] = number
        torch.testing.assert_close(result.double(), full, rtol=1e-9, atol=1e-9, equal_nan=True, msg=lambda m: m + text)
    return True


@pytest.mark.parametrize("seed", range(20))
def test_generated_functions_are_read_rightly_or_refused(seed):
    held_against_the_interpreter(seed)


@pytest.mark.campaign
def test_three_hundred_generated_functions_are_read_rightly_or_refused():
    """None is read wrongly, and it is no answer to refuse them all."""
    taken = sum(held_against_the_interpreter(seed) for seed in range(100, 400))
    assert taken >= 120


# --- what was read wrongly without a word ----------------------------------------

MAP = (
    "#map = affine_map<(d0, d1) -> (d0, d1)>\n#row = affine_map<(d0, d1) -> (d0)>\n"
    "#col = affine_map<(d0, d1) -> (d1)>\n"
)
T, R = "tensor<?x?xf32>", "tensor<?xf32>"


def added(result, a, b, operation="arith.addf", kind=T):
    element = kind.split("x")[-1][:-1]
    return (
        f"  {result} = linalg.generic {{indexing_maps = [#map, #map, #map], iterator_types = "
        f'["parallel", "parallel"]}} ins({a}, {b} : {kind}, {kind}) outs(%e : {kind}) {{\n'
        f"  ^bb0(%x: {element}, %y: {element}, %o: {element}):\n"
        f"    %s = {operation} %x, %y : {element}\n    linalg.yield %s : {element}\n  }} -> {kind}\n"
    )


def function(body, name="f", kind=T, returned="%r"):
    head = f"func.func @{name}(%a: {kind}, %b: {kind}, %e: {kind}) -> {kind} {{\n"
    return f"{head}{body}  return {returned} : {kind}\n}}\n"


def test_a_producer_on_tensors_is_read():
    """Its value became an input: r = q + b."""
    found = linalg_in(MAP + function(f"  %q = math.exp %a : {T}\n" + added("%r", "%q", "%b")), "made", "a.mlir")
    assert [item.name for item in found.inputs] == ["a", "b"]
    assert found.formula.text == "q = exp(a)\nr_value = (q + b)"
    assert found.dtypes == ("float32",)


@pytest.mark.parametrize(
    ("before", "line", "what"),
    [
        (f"  %q = tensor.cast %a : {T} to {T}\n", 5, "tensor.cast is not read"),
        (f"  %q = math.cbrt %a : {T}\n", 5, "math.cbrt is no operation"),
        (f"  gpu.barrier\n  %q = math.exp %a : {T}\n", 5, "gpu.barrier without a result"),
        (f"  %q = func.call @g(%a) : ({T}) -> {T}\n", 5, "func.call is not read"),
        (f'  %q = "math.exp"(%a) : ({T}) -> {T}\n', 5, "print it without"),
        (f"  %q, %q2 = math.exp %a : {T}\n", 5, "1 results; 2 names"),
        ("", 5, "%q is no tensor that stands before"),
        ("  %c = arith.constant 1.0 : f64\n", 5, "the constant 1.0 of f64"),
        (f"  %q = math.exp %a : {T}\n  cf.br ^end\n^end:\n", 6, "cf.br without a result"),
        ("  %c = arith.constant dense<[[1.0]]> : tensor<1x1xf32>\n", 5, "tensors of one number"),
        (f"  %q = math.exp %a : {T}, $\n", 5, "'\\$' has no meaning"),
    ],
)
def test_what_is_not_read_is_refused_with_its_line(before, line, what):
    with pytest.raises(UsageError, match=rf"a\.mlir, line {line}: .*{what}"):
        linalg_in(MAP + function(before + added("%r", "%q", "%b")), "made", "a.mlir")


def test_one_of_several_functions_is_named(tmp_path):
    text = MAP + function(added("%r", "%a", "%b"), "first") + function(added("%r", "%a", "%b", "arith.mulf"), "second")
    with pytest.raises(UsageError, match=r"line 12: 2 functions stand here \(first, second\).*--from a.mlir:first"):
        linalg_in(text, "made", "a.mlir")
    path = tmp_path / "a.mlir"
    path.write_text(text)

    def shown(where):
        return CliRunner().invoke(command_line(["new"]), ["new", "made", "--from", where, "--show-ir"])

    assert "= add" in shown(f"{path}:first").stdout
    assert "= mul" in shown(f"{path}:second").stdout
    assert "no function 'third'" in str(shown(f"{path}:third").exception)


def test_dtypes_are_those_of_the_text():
    """float64 became float32, and mixed ones whatever was asked for."""
    for element, dtype in (("f32", "float32"), ("f16", "float16"), ("bf16", "bfloat16")):
        kind = f"tensor<?x?x{element}>"
        assert linalg_in(MAP + function(added("%r", "%a", "%b", kind=kind), kind=kind), "made", "a").dtypes == (dtype,)
    text = MAP + function(added("%r", "%a", "%b"))
    with pytest.raises(UsageError, match="line 4: elements of f64 are not read"):
        linalg_in(text.replace("f32", "f64"), "made", "a.mlir")
    mixed = text.replace("%b: tensor<?x?xf32>", "%b: tensor<?x?xf16>").replace(f"{T}, {T})", f"{T}, tensor<?x?xf16>)")
    widened = mixed.replace("%y: f32", "%y: f16").replace("%s = arith.addf %x, %y", "%w = arith.extf %y : f16 to f32\n"
                                                         "    %s = arith.addf %x, %w")  # fmt: skip
    with pytest.raises(UsageError, match=r"line 11: inputs and outputs are of f16 and f32"):
        linalg_in(widened, "made", "a.mlir")
    with pytest.raises(UsageError, match="%y is of f16, not of f32"):
        linalg_in(mixed, "made", "a.mlir")
    narrowed = "%h = arith.truncf %x : f32 to f16\n    %w = arith.extf %h : f16 to f32\n    %s = arith.addf %w, %y"
    lost = text.replace("%s = arith.addf %x, %y", narrowed)
    with pytest.raises(UsageError, match="line 7: elements of f16 between inputs and outputs of f32"):
        linalg_in(lost, "made", "a.mlir")


def test_several_results_and_named_operations_are_read():
    text = MAP + function(
        f'  %r:2 = linalg.generic {{indexing_maps = [#map, #map, #map], iterator_types = ["parallel", "parallel"]}} '
        f"ins(%a : {T}) outs(%b, %e : {T}, {T}) {{\n  ^bb0(%x: f32, %o: f32, %p: f32):\n    %s = math.exp %x : f32\n"
        f"    %t = arith.subf %s, %o : f32\n    linalg.yield %s, %t : f32, f32\n  }} -> ({T}, {T})\n"
        f"  %m = arith.mulf %r#0, %r#1 : {T}\n",
        returned="%m",
    )
    given = dict(zip("abe", torch.randn(3, 3, 3, dtype=torch.float64), strict=True))

    def result(of):
        found = linalg_in(of, "made", "a.mlir")
        (value,) = evaluate(found.program(), {i.name: given[i.name[0]] for i in found.inputs}, {}).values()
        return value

    a, b, e = given.values()
    torch.testing.assert_close(result(text), a.exp() * (a.exp() - b))
    product = f"  %m = linalg.matmul ins(%a, %b : {T}, {T}) outs(%e : {T}) -> {T}\n"
    torch.testing.assert_close(result(function(product, returned="%m")), e + a @ b)
    turned = product.replace("matmul", "matmul_transpose_b").replace("%a, %b", "%b, %a")
    torch.testing.assert_close(result(function(turned, returned="%m")), e + b @ a.T)
    with pytest.raises(UsageError, match="without attributes"):
        linalg_in(function(product.replace("ins", "{x = 1} ins"), returned="%m"), "made", "a.mlir")


def test_two_loops_over_one_axis_are_refused():
    """r[i] = sum over j of s[i] * s[j] was read as sum(s * s); the last of several writes of one element won."""
    sums = (
        f"  %z = arith.constant 0.0 : f32\n  %n = tensor.empty() : {R}\n"
        f"  %i = linalg.fill ins(%z : f32) outs(%n : {R}) -> {R}\n"
        f'  %q = linalg.generic {{indexing_maps = [#row, #col, #row], iterator_types = ["parallel", "reduction"]}} '
        f"ins(%s, %s : {R}, {R}) outs(%i : {R}) {{\n  ^bb0(%x: f32, %y: f32, %o: f32):\n"
        f"    %m = arith.mulf %x, %y : f32\n    %t = arith.addf %o, %m : f32\n    linalg.yield %t : f32\n  }} -> {R}\n"
    )
    head = f"func.func @f(%s: {R}) -> {R} {{\n"
    with pytest.raises(UsageError, match="line 8: two loops walk one axis"):
        linalg_in(f"{MAP}{head}{sums}  return %q : {R}\n}}\n", "made", "a.mlir")
    several = added("%r", "%a", "%b").replace("[#map, #map, #map]", "[#map, #map, #row]").replace(
        f"outs(%e : {T})", f"outs(%n : {R})").replace(f"}} -> {T}", f"}} -> {R}")  # fmt: skip
    text = MAP + function(f"  %n = tensor.empty() : {R}\n" + several)
    with pytest.raises(UsageError, match="line 6: an output has every parallel loop once"):
        linalg_in(text, "made", "a.mlir")


def test_a_value_that_is_used_again_and_again_stays_short():
    """Each line doubled the expression before; thirty of them were 2 ** 30 letters."""
    steps = "".join(f"    %s{at + 1} = arith.mulf %s{at}, %s{at} : f32\n" for at in range(30))
    body = (
        added("%r", "%a", "%b").replace("%s =", "%s0 =").replace("    linalg.yield %s", steps + "    linalg.yield %s30")
    )
    assert len(linalg_in(MAP + function(body), "made", "a.mlir").formula.text) < 2000
