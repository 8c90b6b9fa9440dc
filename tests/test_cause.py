"""Planted patterns of wrong elements, and the cause each must be given."""

from __future__ import annotations

import pytest
import torch

from opforge.core.definition.operator import Case
from opforge.core.evidence.verdict import Mismatch
from opforge.registry import load
from opforge.verify import Expectation, compare
from opforge.verify.explain.cause import from_lengths, likely_cause
from opforge.verify.oracle.expectation import consult


def truth():
    return torch.randn(24, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(5)) + 3


def tail_of(value):
    def plant(y):
        y[:, 32:] = value
        return y

    return plant


def last_rows(y):
    y[20:] += 1
    return y


def columns(step):
    def plant(y):
        y[:, ::step] += torch.rand(y[:, ::step].shape, dtype=y.dtype) + 0.5
        return y

    return plant


def some(value):
    def plant(y):
        y[3, 5] = y[7, 1] = y[9, 30] = value
        return y

    return plant


def scattered(y):
    generator = torch.Generator().manual_seed(1)
    hit = torch.rand(y.shape, generator=generator) < 0.2
    y[hit] += torch.randn(int(hit.sum()), generator=generator, dtype=y.dtype) * 5
    return y


PLANTED = {
    "all NaN": (lambda y: y * float("nan"), "never written"),
    "NaN tail": (tail_of(float("nan")), "a tail that is not written"),
    "all zeros": (lambda y: y * 0, "every wrong element is 0"),
    "zero tail": (tail_of(0.0), "mask of the last block"),
    "tail with other values": (tail_of(7.0), "only columns from 32 on"),
    "last rows": (last_rows, "20 on"),
    "overflow": (some(float("inf")), "overflows"),
    "every second column": (columns(2), "every second column"),
    "every fourth column": (columns(4), "every 4th column"),
    "scaled": (lambda y: y * 0.125, "constant factor of 0.125"),
    "each row by its own factor": (
        lambda y: y * torch.linspace(1.2, 3, 24, dtype=y.dtype)[:, None],
        "factor of its own",
    ),
    "a missing term": (lambda y: y - 0.75, "constant -0.75"),
    "transposed memory": (lambda y: y.t().reshape(y.shape), "strides are swapped"),
    "shifted by one": (lambda y: y.roll(1, -1), "offset of one"),
    "shuffled": (
        lambda y: y.flatten()[torch.randperm(y.numel(), generator=torch.Generator().manual_seed(3))].reshape(y.shape),
        "wrong places",
    ),
    "half precision": (lambda y: y.bfloat16().double(), "too low a precision"),
    "noise": (scattered, "without a pattern"),
}


@pytest.mark.parametrize(("plant", "words"), PLANTED.values(), ids=PLANTED)
def test_planted_patterns_are_named(plant, words):
    """The decision tree of seed 004 answers for each of its leaves."""
    expected = truth()
    actual = plant(truth())
    wrong = ~((actual - expected).abs() <= 1e-6)
    assert words in likely_cause(actual, expected, wrong)


def test_a_lost_nan_is_named():
    """A maximum that drops NaN is a mistake of its own, not noise."""
    expected = truth()
    expected[4] = float("nan")
    actual = expected.nan_to_num(0.5)
    assert "NaN is lost" in likely_cause(actual, expected, torch.isnan(expected) & ~torch.isnan(actual))


def test_a_square_transpose_is_named():
    """A matrix that is its own transpose's transpose: the commonest mistake with strides."""
    expected = truth()[:, :24]
    wrong = (expected.t() - expected).abs() > 1e-6
    assert "transpose" in likely_cause(expected.t().clone(), expected, wrong)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 1), (2, 1, 1)])
def test_any_shape_gets_an_answer(shape):
    """Scalars and single columns have no pattern, and must not raise."""
    expected = torch.full(shape, 2.0, dtype=torch.float64)
    for actual in (expected + 1, expected * float("nan"), expected * 0, expected * float("inf")):
        assert likely_cause(actual, expected, torch.ones(shape, dtype=torch.bool))


def mismatch(relative):
    """A failure whose every element is off by a relative error."""
    expected = truth()
    metrics = compare(
        expected * (1 + relative),
        Expectation(output="y", dtype="float64", expected=expected, bound=torch.full_like(expected, 1e-9)),
    ).metrics
    case = Case(name="long", axes={}, why="")
    return Mismatch(
        case=case,
        dtype="float32",
        output="y",
        index=(0, 0),
        expected=1.0,
        actual=1.1,
        tolerance=0.0,
        wrong=1,
        total=1,
        law=None,
        cause="",
        metrics=metrics,
        isolation="",
    )


@pytest.mark.parametrize(
    ("relative", "right", "wrong", "named"),
    [
        (0.01, [64, 1000, 2048], [4096, 8192], True),
        (0.01, [64, 5000], [4096], False),
        (0.01, [], [4096], False),
        (0.01, [8], [16], False),
        (0.9, [64, 1000], [4096], False),
    ],
    ids=["from 4096 on", "longer ones are right", "nothing was right", "too short to tell", "not slight"],
)
def test_an_accumulator_is_named_only_where_lengths_separate_right_from_wrong(relative, right, wrong, named):
    """Wrong from K = 4096 on, and right below: that is an accumulator. Anything less clear is not called one."""
    words = from_lengths(mismatch(relative), right, wrong)
    assert (words is not None) == named
    if words is not None:
        assert "right up to K = 2048" in words and "from K = 4096 on" in words


def rms(x):
    return x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + 1e-6)


def test_squares_that_overflow_are_no_missing_scale():
    """1e20 squared is infinite in float32, and the row becomes 0: "a mask that hides too much" sent its author to the
    wrong place.
    """
    x = torch.randn(6, 32, generator=torch.Generator().manual_seed(1))
    x[2, 7] = x[4, 1] = 1e20
    case = Case(name="c", axes={"lead": (6,), "cols": 32}, why="", scalars={"eps": 1e-6})
    (expectation,) = consult(
        load([]).operator("rmsnorm"), case, "float32", {"x": x, "weight": torch.ones(32)}
    ).expectations
    expected, actual, wrong = expectation.expected, rms(x), compare(rms(x), expectation).wrong
    # rows that float32 can square are within the operator's own bound, and the two others are not
    assert wrong.any(dim=1).tolist() == [False, False, True, False, True, False]
    actual, x = actual.double(), x.double()
    assert "square float32 cannot hold" in likely_cause(actual, expected, wrong, {"x": x})
    # the same pattern without such values has another cause
    assert "square" not in likely_cause(actual, expected, wrong, {"x": x.clamp(-9, 9)})


@pytest.mark.parametrize(
    ("special", "words"),
    [(float("inf"), "rows that hold NaN or an infinity"), (float("nan"), "one row reaches others")],
)
def test_nan_and_infinity_have_questions_of_their_own(special, words):
    x = torch.randn(6, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x[3, 5] = special
    expected = x.clone()
    actual = x.clone()
    if special == float("inf"):
        actual[3, 8:20] += torch.rand(12, dtype=torch.float64) + 1
    else:
        actual[4, :9] = float("inf")
        actual[4, 9:20] = float("nan")
    wrong = (actual != expected) & ~(actual.isnan() & expected.isnan())
    assert words in likely_cause(actual, expected, wrong, {"x": x})


def test_results_of_a_long_row_that_are_slightly_off_are_no_transpose():
    """263,168 results below 1e-4, in one row: it is its own transpose, and 1e-6 is no small number here."""
    expected = torch.randn(1, 4000, dtype=torch.float64, generator=torch.Generator().manual_seed(6)).softmax(-1) / 64
    actual = expected * 1.004
    cause = likely_cause(actual, expected, torch.ones_like(actual, dtype=torch.bool))
    assert "precis" in cause or "factor" in cause, cause
    moved = likely_cause(expected.roll(1, -1), expected, torch.ones_like(actual, dtype=torch.bool))
    assert "neighbour" in moved
