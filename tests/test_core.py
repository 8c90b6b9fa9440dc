"""The nouns: shapes, expressions, costs, codecs."""

import doctest
import importlib
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import opforge
from opforge.core.definition import shapes
from opforge.core.definition.implementation import Accepted, Config, Implementation, Rejected
from opforge.core.definition.operator import Case, Operator, TensorSpec
from opforge.core.evidence.record import from_json, to_json
from opforge.core.evidence.timing import Timing
from opforge.core.language import expr
from opforge.core.language.errors import UsageError

SOURCES = Path(opforge.__file__).parent
WITH_EXAMPLES = sorted(
    ".".join(file.relative_to(SOURCES.parent).with_suffix("").parts)
    for file in SOURCES.rglob("*.py")
    if ">>> " in file.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_docstring_examples_hold(name):
    """An example that has drifted from the code teaches the wrong thing."""
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted and not result.failed


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "x.real", "(lambda: 1)()", "[i for i in (1,)]", "open('f')", "x if", "'a'.join(())", "{1: 2}"],
)
def test_expressions_hold_nothing_but_arithmetic(text):
    """Expressions come from files that are only listed, so they must not be able to do anything."""
    with pytest.raises(UsageError):
        expr.evaluate(text, {"x": 1})


def test_an_unknown_name_is_named():
    with pytest.raises(UsageError, match=r"'clos'.*cols"):
        expr.evaluate("clos + 1", {"cols": 3})


@given(st.lists(st.integers(0, 5), max_size=4), st.integers(0, 9), st.lists(st.integers(0, 5), max_size=3))
def test_binding_finds_the_axes_that_made_the_shapes(lead, cols, tail):
    """bind_axes inverts full_shape for any rank."""
    axes = {"lead": tuple(lead), "cols": cols, "tail": tuple(tail)}
    specs = [("x", "*lead cols *tail"), ("bias", "*tail")]
    bound = shapes.bind_axes([(name, shape, shapes.full_shape(shape, axes)) for name, shape in specs])
    assert bound == axes
    assert math.prod(shapes.collapsed_shape("*lead cols *tail", axes)) == math.prod(
        shapes.full_shape("*lead cols *tail", axes)
    )


@pytest.mark.parametrize(
    ("given_shapes", "words"),
    [
        ([("x", "rows cols", (2, 3)), ("bias", "cols", (4,))], "bias has cols = 4, elsewhere it is 3"),
        ([("x", "rows cols", (2,))], "x has 1 axes"),
        ([("x", "*lead cols", ())], "at least 1"),
        ([("x", "*a *b", (2, 3))], "leaves"),
    ],
)
def test_shapes_that_do_not_fit_say_which(given_shapes, words):
    """The message names the tensor, the axis and both sizes, or the count."""
    with pytest.raises(UsageError, match=words):
        shapes.bind_axes(sorted(given_shapes, key=lambda entry: entry[0] == "bias"))


def operator(**changes):
    values = {
        "name": "scale",
        "about": "",
        "inputs": (TensorSpec(name="x", shape="*lead cols"),),
        "outputs": (TensorSpec(name="y", shape="*lead cols"),),
        "reference": lambda x: x,
        "flops": "2*prod(lead)*cols",
    }
    return Operator(**{**values, **changes})


def test_cost_counts_each_input_and_output_once():
    cost = operator().cost({"lead": (2, 3), "cols": 5}, "bfloat16")
    assert (cost.flops, cost.bytes_read, cost.bytes_written) == (60, 60, 60)
    assert cost.intensity == 0.5


def test_a_definition_that_contradicts_itself_is_refused():
    with pytest.raises(UsageError, match="no input has"):
        operator(outputs=(TensorSpec(name="y", shape="rows"),))
    with pytest.raises(UsageError, match="share a name"):
        operator(outputs=(TensorSpec(name="x", shape="cols"),))


def test_limits_are_named_when_they_break(tmp_path):
    """A config that is skipped says why, by name."""
    implementation = Implementation(
        name="triton_x",
        operator="scale",
        backend="triton",
        source=tmp_path,
        idea="",
        supports={"row_fits": "cols <= 8"},
        space={"block": (256, 512), "warps": (4, 16)},
        limits={"block_covers_the_row": "block >= cols", "every_warp_has_work": "block >= warps * 32"},
    )
    assert len(list(implementation.configs())) == 4
    config = Config((("block", 256), ("warps", 16)))
    answer = implementation.allows(config, {"cols": 300}, "float32", 4, {})
    assert answer == Rejected("not block_covers_the_row nor every_warp_has_work")
    assert implementation.accepts({"cols": 8}, "float32", {}) == Accepted()
    refused = implementation.accepts({"cols": 9}, "float32", {})
    assert isinstance(refused, Rejected) and "row_fits" in refused.reason


def test_nouns_survive_json():
    """What goes into a record comes out the same, infinities included."""
    case = Case(name="a", axes={"lead": (1, 2), "cols": 3}, why="x", scalars={"eps": 1e-5})
    timing = Timing(samples_s=(1.0, math.inf), batch=1, timer="host", cache="warm", overhead_s=0.0, conditions=())
    for noun in (case, timing, Config((("block", 256),))):
        assert from_json(json.loads(json.dumps(to_json(noun), allow_nan=False))) == noun


@pytest.mark.parametrize(
    "data",
    [
        {"type": "Popen", "args": "ls"},
        {"type": "Case", "name": 3, "axes": {}, "why": ""},
        {"type": "Case", "name": "x"},
        {"type": "Case", "name": "x", "axes": {}, "why": "", "surprise": 1},
        {
            "type": "Timing",
            "samples_s": "fast",
            "batch": 1,
            "timer": "host",
            "cache": "warm",
            "overhead_s": 0.0,
            "conditions": [],
        },
    ],
)
def test_foreign_data_is_refused(data):
    """Records are imported from other machines: only known nouns with fields of the right type come in."""
    with pytest.raises(UsageError):
        from_json(data)


def test_timing_statistics_come_from_the_samples():
    timing = Timing(
        samples_s=tuple(float(i) for i in range(1, 102)),
        batch=1,
        timer="host",
        cache="warm",
        overhead_s=0.0,
        conditions=(),
    )
    assert timing.median_s == 51
    assert timing.quantile_s(0.9) == 91
    low, high = timing.interval_s
    assert low < 51 < high and high - low < 25
    with pytest.raises(TypeError):
        Timing()  # a measured field has no default
