"""Definitions from other sources: PyTorch functions by torch.export, and linalg.generic text."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

from opforge.cli.app import command_line
from opforge.core.language.errors import UsageError
from opforge.forge import from_formula
from opforge.forge.program.evaluate import evaluate
from opforge.forge.program.families import layout_of
from opforge.forge.read.linalg import linalg_in
from opforge.forge.read.traced import traced

FUNCTIONS = """
import torch
import torch.nn.functional as F

class Norm(torch.nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.randn(width))
        self.register_buffer("shift", torch.randn(width))

    def forward(self, x, gate):
        y = F.layer_norm(x, (24,), self.scale, self.shift, 1e-5)
        return torch.softmax(F.gelu(y) * gate, -1) + y.pow(2).mean(-1, keepdim=True)

def example_inputs():
    return [torch.randn(4, 3, 24), torch.randn(24)]

def linear(x, w, b):
    return F.relu(F.linear(x, w, b)) * 0.5 + 1

def turned(x, w):
    return torch.tanh(x @ w.t())

def channels(x, s, b):
    return F.silu(x * s[:, None] + b.unsqueeze(-1)).clamp(min=-0.1, max=2)

def chosen(x, y):
    return torch.where((x > y) & (y >= 0), torch.maximum(x, y) - 2 * y, F.leaky_relu(x) / (1 + x.abs()))

def rms(x, w):
    return F.rms_norm(x, (8,), w, 1e-6), x.amax(-1)

def statistics(x):
    return torch.logsumexp(x, -1) - x.std(-1, correction=0) + x.sum(dim=1)

def scores(q, k, bias):
    return torch.matmul(q, k.transpose(-2, -1)) * 0.5 + bias

def batched(a, b):
    return torch.bmm(a, b).relu()

def running(x):
    return torch.cumsum(x * 2, dim=-1) - torch.cumprod(torch.sigmoid(x), 1)

def square(x):
    return x + x.t()

def branching(x):
    return x if x.sum() > 0 else -x

def sorted_rows(x):
    return torch.sort(x).values

def sample_variance(x):
    return x.var(-1)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    return path


@pytest.mark.parametrize(
    ("name", "shapes", "family"),
    [
        ("Norm", [], "rows"),
        ("linear", [(4, 8), (16, 8), (16,)], "product"),
        ("turned", [(5, 8), (7, 8)], "product"),
        ("channels", [(2, 3, 5), (3,), (3,)], "elementwise"),
        ("chosen", [(4, 6), (6,)], "elementwise"),
        ("rms", [(4, 8), (8,)], "rows"),
        ("statistics", [(4, 8)], "rows"),
        ("scores", [(2, 3, 5, 8), (2, 3, 7, 8), (3, 5, 7)], "product"),
        ("batched", [(3, 4, 8), (3, 8, 5)], "product"),
        ("running", [(4, 8)], "rows"),
    ],
)
def test_traced_functions_compute_the_same_and_can_be_generated(name, shapes, family, file):
    """`traced` itself holds the formula against the function; here it is asked on other sizes."""
    found = traced(f"{file}:{name}", "made", shapes)
    assert layout_of(found.program()).family == family
    if name == "linear":
        assert [item.name for item in found.inputs] == ["x", "w", "b"]
        sizes = {"d0": 3, "d1": 5, "d2": 2}
        tensors = {i.name: torch.randn([sizes[axis] for axis in i.axes], dtype=torch.float64) for i in found.inputs}
        expected = torch.relu(torch.nn.functional.linear(*tensors.values())) * 0.5 + 1
        torch.testing.assert_close(next(iter(evaluate(found.program(), tensors, {}).values())), expected)


@pytest.mark.parametrize(
    ("where", "shapes", "message"),
    [
        ("square", [(4, 4)], "axis twice"),
        ("branching", [(4, 4)], "cannot be traced"),
        ("sorted_rows", [(4, 4)], "sort"),
        ("sample_variance", [(4, 4)], "correction=0"),
        ("linear", [(4, 1), (16, 1), (16,)], "dimension of one element"),
        ("nothing", [(4, 4)], "has no nothing"),
    ],
)
def test_what_has_no_formula_is_refused(where, shapes, message, file):
    with pytest.raises(UsageError, match=message):
        traced(f"{file}:{where}", "made", shapes)


def test_a_formula_that_disagrees_with_its_function_is_refused(file, monkeypatch):
    """A planted mistake in the table of operations."""
    from opforge.forge.read import traced as module

    monkeypatch.setitem(module.BINARY, "sub", "+")
    with pytest.raises(UsageError, match="otherwise than the function"):
        traced(f"{file}:chosen", "made", [(4, 6), (6,)])


def test_the_command_takes_a_function(file, tmp_path):
    def ask(*words):
        return CliRunner().invoke(command_line(["new"]), ["new", "made", "--home", str(tmp_path / "home"), *words])

    shown = ask("--like", f"{file}:turned", "--example", "5x8", "--example", "7x8", "--show-ir")
    assert shown.exit_code == 0, shown.output
    assert "dot" in shown.stdout
    assert "family     product" in shown.stdout
    assert not (tmp_path / "home").exists()
    assert ask("--like", f"{file}:Norm").exit_code == 0
    assert (tmp_path / "home" / "made" / "definition.md").is_file()
    assert isinstance(ask("--example", "4").exception, UsageError)


# --- linalg.generic ----------------------------------------

X = ("x", "(d0, d1)", "?x?xf32")
ROW, COL = ("s", "(d0)", "?xf32"), ("b", "(d1)", "?xf32")
OUT = ("(d0, d1)", "?x?xf32")


def generic(operands, body, *, out=OUT, reduction=None, init=None, name="%0", dims="d0, d1"):
    """A linalg.generic with its maps written in place; `body` gets %x, %y, … for operands."""
    count = dims.count(",") + 1
    maps = [f"affine_map<({dims}) -> {shape}>" for _, shape, _ in operands] + [f"affine_map<({dims}) -> {out[0]}>"]
    kinds = ['"reduction"' if at == reduction else '"parallel"' for at in range(count)]
    names = ", ".join(f"%{one}" for one, _, _ in operands)
    types = ", ".join(f"tensor<{kind}>" for _, _, kind in operands)
    arguments = ", ".join(f"%in_{one}: f32" for one, _, _ in operands)
    start = (
        f"%cst_init = arith.constant {init} : f32\n%e = tensor.empty() : tensor<{out[1]}>\n"
        f"%init = linalg.fill ins(%cst_init : f32) outs(%e : tensor<{out[1]}>) -> tensor<{out[1]}>\n"
        if init is not None
        else f"%init = tensor.empty() : tensor<{out[1]}>\n"
    )
    steps = "\n".join(f"  {line}" for line in body.split("; "))
    return (
        f"{start}{name} = linalg.generic {{indexing_maps = [{', '.join(maps)}], "
        f"iterator_types = [{', '.join(kinds)}]}} "
        f"ins({names} : {types}) outs(%init : tensor<{out[1]}>) {{\n^bb0({arguments}, %out: f32):\n{steps}\n"
        f"}} -> tensor<{out[1]}>\nreturn {name} : tensor<{out[1]}>\n"
    )


def unary(operation):
    return generic([X], f"%1 = {operation} %in_x : f32; linalg.yield %1 : f32")


def binary(operation, other=COL):
    return generic([X, other], f"%1 = {operation} %in_x, %in_{other[0]} : f32; linalg.yield %1 : f32")


def reduced(operation, init, before="", term="%in_x"):
    body = f"{before}%9 = {operation} %out, {term} : f32; linalg.yield %9 : f32"
    return generic([X], body, out=("(d0)", "?xf32"), reduction=1, init=init)


PRODUCT = generic(
    [("a", "(d0, d2)", "?x?xf32"), ("w", "(d2, d1)", "?x?xf32")],
    "%1 = arith.mulf %in_a, %in_w : f32; %2 = arith.addf %out, %1 : f32; linalg.yield %2 : f32",
    reduction=2, init="0.000000e+00", dims="d0, d1, d2",
)  # fmt: skip
TURNED = PRODUCT.replace("(d2, d1)>", "(d1, d2)>")
EPILOGUE = PRODUCT.split("return")[0] + generic(
    [("0", "(d0, d1)", "?x?xf32"), COL],
    "%c = arith.constant 0.0 : f32; %1 = arith.addf %in_0, %in_b : f32; %2 = arith.maximumf %1, %c : f32; "
    "linalg.yield %2 : f32",
    name="%5",
).replace("%init", "%init_2")
HALF = "%c = arith.constant 5.000000e-01 : f32; "
TEXTS = [
    *((unary(f"math.{name}"), f"y = {formula}(x[i, n])") for name, formula in (
        ("exp", "exp"), ("sin", "sin"), ("cos", "cos"), ("tanh", "tanh"), ("erf", "erf"), ("absf", "abs"),
        ("floor", "floor"), ("ceil", "ceil"),
    )),
    (unary("arith.negf"), "y = -x[i, n]"),
    (binary("arith.addf"), "y = x[i, n] + b[n]"),
    (binary("arith.subf"), "y = x[i, n] - b[n]"),
    (binary("arith.mulf", ROW), "y = x[i, n] * s[i]"),
    (binary("arith.divf", ROW), "y = x[i, n] / s[i]"),
    (binary("arith.maximumf"), "y = maximum(x[i, n], b[n])"),
    (binary("arith.minimumf", ROW), "y = minimum(x[i, n], s[i])"),
    (generic([X], f"{HALF}%1 = arith.mulf %in_x, %c : f32; linalg.yield %1 : f32"), "y = x[i, n] * 0.5"),
    (generic([X], f"{HALF}%1 = arith.addf %in_x, %c : f32; %2 = arith.mulf %1, %1 : f32; linalg.yield %2 : f32"),
     "y = square(x[i, n] + 0.5)"),
    (generic([X, COL], "%1 = arith.cmpf ogt, %in_x, %in_b : f32; %2 = arith.select %1, %in_x, %in_b : f32; "
             "linalg.yield %2 : f32"), "y = where(x[i, n] > b[n], x, b)"),
    (generic([X, COL], "%1 = arith.cmpf olt, %in_x, %in_b : f32; %2 = arith.negf %in_x : f32; "
             "%3 = arith.select %1, %2, %in_b : f32; linalg.yield %3 : f32"), "y = where(x[i, n] < b[n], -x, b)"),
    (generic([X, ROW, COL], "%1 = arith.mulf %in_x, %in_s : f32; %2 = arith.addf %1, %in_b : f32; "
             "linalg.yield %2 : f32"), "y = x[i, n] * s[i] + b[n]"),
    (generic([X], "%c = arith.constant 2.0 : f32; %1 = math.powf %in_x, %c : f32; linalg.yield %1 : f32"),
     "y = x[i, n] ** 2"),
    (generic([X], "%1 = math.absf %in_x : f32; %2 = math.sqrt %1 : f32; linalg.yield %2 : f32"),
     "y = sqrt(abs(x[i, n]))"),
    (reduced("arith.addf", "0.000000e+00"), "y[i] = sum(x[i, n])"),
    (reduced("arith.maximumf", "0xFF800000"), "y[i] = max(x[i, n])"),
    (reduced("arith.minimumf", "0x7F800000"), "y[i] = min(x[i, n])"),
    (reduced("arith.addf", "0.0", "%1 = arith.mulf %in_x, %in_x : f32; ", "%1"), "y[i] = sum(square(x[i, n]))"),
    (reduced("arith.addf", "0.0", "%1 = math.exp %in_x : f32; ", "%1"), "y[i] = sum(exp(x[i, n]))"),
    (reduced("arith.addf", "1.0"), "y[i] = 1 + sum(x[i, n])"),
    (reduced("arith.maximumf", "0.0"), "y[i] = maximum(0, max(x[i, n]))"),
    (PRODUCT, "y = a[i, k] @ w[k, n]"),
    (TURNED, "y = a[i, k] @ w[n, k]"),
    (EPILOGUE, "y = relu(a[i, k] @ w[k, n] + b[n])"),
]  # fmt: skip


def test_thirty_two_texts_are_asked():
    assert len(TEXTS) == 32


@pytest.mark.parametrize(("text", "formula"), TEXTS, ids=[formula for _, formula in TEXTS])
def test_linalg_text_computes_what_its_formula_computes(text, formula):
    found, said = linalg_in(text, "made", "a.mlir"), from_formula("made", formula)
    sizes = dict(zip("ink", (3, 5, 4), strict=True))
    draw = torch.Generator().manual_seed(1)
    tensors = {
        item.name: torch.randn([sizes[axis] for axis in item.axes], generator=draw, dtype=torch.float64)
        for item in said.inputs
    }
    expected = evaluate(said.program(), tensors, {})["y"]
    # what a formula may not be called is called otherwise in the text's
    named = {item.name: tensors[item.name.removesuffix("_value")] for item in found.inputs}
    (result,) = evaluate(found.program(), named, {}).values()
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)
    assert layout_of(found.program()).family == layout_of(said.program()).family


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no linalg operation"),
        (binary("arith.maxnumf"), "maxnumf"),
        (reduced("arith.mulf", "1.0"), "no sum"),
        (unary("arith.negf").replace("-> (d0, d1)>", "-> (d0 + 1, d1)>"), "plain dimensions"),
        (unary("arith.negf").replace("f32>) outs", "i32>) outs"), "elements of i32"),
        (unary("arith.negf").replace("linalg.generic", "linalg.conv"), "line 2: linalg.conv is not read"),
        (unary("arith.negf").replace("%in_x : f32\n", "%nothing : f32\n"), "not known in this body"),
        (unary("arith.negf").replace('"parallel"]', '"window"]'), "loops are parallel"),
    ],
)
def test_linalg_text_that_says_no_formula_is_refused(text, message):
    with pytest.raises(UsageError, match=message):
        linalg_in(text, "made", "a.mlir")


def test_named_maps_and_a_function_around_are_read(tmp_path):
    path = tmp_path / "bias.mlir"
    path.write_text(
        "#map = affine_map<(d0, d1) -> (d0, d1)>\n#map1 = affine_map<(d0, d1) -> (d1)>\nmodule {\n"
        "func.func @bias(%x: tensor<64x128xf32>, %b: tensor<128xf32>) -> tensor<64x128xf32> {\n"
        + binary("arith.addf")
        .replace("affine_map<(d0, d1) -> (d0, d1)>", "#map")
        .replace("affine_map<(d0, d1) -> (d1)>", "#map1")
        .replace("?x?xf32", "64x128xf32")
        .replace("?xf32", "128xf32")
        + "}\n}\n"
    )
    answer = CliRunner().invoke(
        command_line(["new"]), ["new", "made", "--from", str(path), "--home", str(tmp_path / "home")]
    )
    assert answer.exit_code == 0, answer.output
    assert "`d0=64, d1=128`" in (tmp_path / "home/made/definition.md").read_text()
