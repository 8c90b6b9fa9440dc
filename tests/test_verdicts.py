"""Verification: what must pass, what must not, and with which evidence."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import textwrap
from contextlib import closing
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings, strategies as st

from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.operator import Case, Constraint, Law, Operator, TensorSpec, Tolerance
from opforge.core.evidence.record import from_json, to_json
from opforge.core.evidence.verdict import Broken, Crash, Mismatch, Pass
from opforge.core.language.errors import UsageError
from opforge.definitions.activation import activated, linear_errors
from opforge.registry import load
from opforge.runner import Isolated, bind, refused
from opforge.runner.worker.inputs import allocate, fill
from opforge.verify import DEFAULT, QUICK, CaseCache, Expectation, compare, verify
from opforge.verify.cases.hidden import PLACES, elements, hidden_cases, leading_axis, reduced
from opforge.verify.explain.shrink import shrink
from opforge.verify.extra.quantisation import clip_ratio, two_errors
from opforge.verify.judging.repeats import RACE
from opforge.verify.judging.run_case import _broken_law
from opforge.verify.oracle.expectation import Truth, consult

ROW_SUM = """
from opforge.core.operator import Case, Operator, TensorSpec, Tolerance


def reference(x):
    return x.sum(dim=-1)


def magnitude(inputs, outputs, scalars):
    return {"y": inputs["x"].abs().sum(dim=-1)}


operator = Operator(
    name="row_sum",
    about="a guest's row sums",
    inputs=(TensorSpec(name="x", shape="*lead cols"),),
    outputs=(TensorSpec(name="y", shape="*lead"),),
    reference=reference,
    flops="prod(lead) * cols",
    dtypes=("float32",),
    tolerance=Tolerance(length="cols", magnitude=magnitude),
    cases=(
        Case(name="plain", axes={"lead": (6,), "cols": 200}, why="several rows"),
        Case(name="long", axes={"lead": (2,), "cols": 4096}, why="a long reduction"),
    ),
    implementations=(%s),
)
"""


def an_operator(**changes):
    values = {"reference": lambda x: 2 * x, "cases": (Case(name="plain", axes={"n": 4}, why="some"),)} | changes
    return Operator(
        name="twice",
        about="",
        inputs=(TensorSpec(name="x", shape="n"),),
        outputs=(TensorSpec(name="y", shape="n"),),
        flops="n",
        dtypes=("float32",),
        **values,
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"reference": lambda x, y: x}, "reference of twice raises TypeError.*op.py"),
        ({"reference": lambda x: x @ torch.ones(7, dtype=x.dtype)}, "reference of twice raises RuntimeError"),
        ({"reference": lambda x: None}, "reference of twice returns NoneType"),
        ({"reference": lambda x: [x]}, "reference of twice returns list"),
        (
            {"tolerance": Tolerance(magnitude=lambda inputs, outputs, scalars: {"y": inputs["z"]})},
            "tolerance of twice raises KeyError",
        ),
    ],
)
def test_what_a_definition_raises_is_said_to_be_its_own(changes, words):
    """A slip in op.py must not look like a defect of opforge."""
    operator = an_operator(**changes)
    with pytest.raises(UsageError, match=words):
        consult(operator, operator.cases[0], "float32", {"x": torch.ones(4)})


@pytest.mark.parametrize(
    ("holds", "words"),
    [
        (lambda i, o, s: o["z"], "law odd of twice raises KeyError"),
        (lambda i, o, s: True, "law odd of twice answers True"),
    ],
)
def test_a_law_answers_with_a_sentence_or_nothing(holds, words):
    operator = an_operator(laws=(Law(name="odd", about="", holds=holds),))
    prepared = SimpleNamespace(
        case=operator.cases[0], dtype="float32", truth=Truth(inputs={"x": torch.ones(4).double()}, expectations=())
    )
    with pytest.raises(UsageError, match=words):
        _broken_law(prepared, operator, {"y": torch.ones(4)}, "in process")


def test_a_layout_that_nobody_knows_is_no_contiguous_one():
    """A misspelt layout was laid out contiguous: a case that tested nothing."""
    operator = an_operator()
    with pytest.raises(UsageError, match="Did you mean 'misaligned'"):
        allocate(operator, dataclasses.replace(operator.cases[0], layout="misalignd"), "float32")


@pytest.fixture(scope="module")
def host():
    with Isolated() as found:
        yield found


@pytest.fixture
def judged(tmp_path, host, guest):
    """judged(source) verifies one torch implementation of guest_add, or of row_sum, in float32."""
    benches = []

    def run(source, operator="guest_add", effort=QUICK, dtype="float32", **options):
        if operator == "guest_add":
            home = guest(tested=source)
        else:
            folder = tmp_path / "home" / operator
            folder.mkdir(parents=True)
            (folder / "op.py").write_text(ROW_SUM % '"torch_tested",')
            (folder / "torch_tested.py").write_text(textwrap.dedent(source))
            home = folder.parent
        registry = load([home])
        bench = CaseCache(registry=registry, operator=registry.operator(operator), host=host, device="cpu")
        benches.append(bench)
        return verify(bench, registry.implementation(operator, "torch_tested"), dtype, effort=effort, **options)

    yield run
    for bench in benches:
        bench.close()


def evidence(verdict):
    """The four things a failure must name."""
    assert isinstance(verdict, Mismatch), verdict
    assert len(verdict.index) == 2 and math.isfinite(verdict.expected) and verdict.tolerance > 0
    assert not abs(verdict.actual - verdict.expected) <= verdict.tolerance
    return verdict


def test_a_selection_outside_a_kernels_domain_is_not_all_that_is_asked(judged):
    """A kernel for a narrow domain was called unsupported, because none of the cases of a quick verification
    lay in it.
    """
    source = """
        SUPPORTS = {"few_rows": "rows < 7"}

        def run(x, bias):
            return x + bias
    """
    # no case is as small as that: the selection is the operator's first, of 7 rows
    verdict = judged(source, effort=dataclasses.replace(QUICK, elements=0, hidden=0))
    assert isinstance(verdict, Pass) and {checked.case.axes["rows"] for checked in verdict.checked} == {4, 5}, verdict


# comparison


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), min_size=1, max_size=12))
def test_nan_and_infinity_must_stand_where_the_oracle_has_them(pairs):
    """A NaN that is accepted as anything, or an Inf as any large number, is how checkers are fooled (VERIFY A7)."""
    expected = torch.tensor([e for e, _ in pairs], dtype=torch.float64)
    actual = torch.tensor([a for _, a in pairs], dtype=torch.float32)
    wrong = compare(
        actual, Expectation(output="y", dtype="float32", expected=expected, bound=torch.full_like(expected, 1e-3))
    ).wrong
    for (e, a), is_wrong in zip(pairs, wrong.tolist(), strict=True):
        if math.isnan(e) or math.isnan(a):
            assert is_wrong == (math.isnan(e) != math.isnan(a))
        elif math.isinf(e):
            assert is_wrong == (a != e)
        elif math.isinf(a):
            # beyond the largest finite float32 a correctly rounded result is infinite; a float32 expectation never is
            assert is_wrong or abs(e) >= DTYPES["float32"].largest
        else:
            assert is_wrong == (abs(a - e) > 1e-3)


@pytest.mark.parametrize(
    ("expected", "bound", "above", "below"),
    [
        (0.0, 1e6, True, True),
        (0.0, 60000.0, False, False),
        (1000.0, 65000.0, True, False),
        (-1000.0, 65000.0, False, True),
        (1000.0, 1e6, True, True),
        (70000.0, 1.0, True, False),
        (65500.0, 10.0, False, False),
    ],
)
def test_an_infinity_is_right_where_the_bound_reaches_beyond_the_dtype(expected, bound, above, below):
    """PyTorch's gradient of one column in float16 is 0 to within 2e6, and was a Mismatch for the infinity that it is
    rounded to: an infinity had to have the sign of what is expected, and 0 has none.
    """
    one = Expectation(
        output="y",
        dtype="float16",
        expected=torch.tensor([expected], dtype=torch.float64),
        bound=torch.tensor([bound], dtype=torch.float64),
    )
    for value, right in ((math.inf, above), (-math.inf, below), (math.nan, False)):
        assert bool(compare(torch.tensor([value], dtype=torch.float16), one).wrong) != right


def test_a_rounding_before_the_last_may_reach_the_next_power_of_two():
    """0.5 - 1e-5, moved up by an intermediate's rounding, is stored with the steps above 0.5, twice as large (seen of
    PyTorch's own bfloat16).
    """
    operator = Operator(
        name="twice_rounded",
        about="",
        source="",
        inputs=(TensorSpec(name="x", shape="n"),),
        outputs=(TensorSpec(name="y", shape="n"),),
        reference=lambda x: x * 1.0,
        flops="n",
        tolerance=Tolerance(
            factor=1.0, rounded=lambda inputs, outputs, scalars: {"y": (4 * outputs["y"], outputs["y"] * 0 + 0.5)}
        ),
        cases=(Case(name="c", axes={"n": 3}, why=""),),
    )
    x = torch.tensor([0.5 - 1e-5, 0.4, 0.6], dtype=torch.float64)
    (expectation,) = consult(operator, operator.cases[0], "bfloat16", {"x": x}).expectations
    # half a step of an intermediate near 2 is 2^-7 above 2 and 2^-8 below, half of which counts here; half a step at
    # the end is 2^-9 above 0.5 and 2^-10 below
    assert expectation.bound.tolist() == pytest.approx(
        [2.0**-9 + 2.0**-9, 2.0**-9 + 2.0**-10, 2.0**-8 + 2.0**-9], rel=1e-3
    )


@pytest.mark.parametrize("terms", [1, 64, 4096])
def test_a_sigmoid_that_underflows_is_no_error_of_a_linear_layer(terms):
    """silu(-88) is -5e-37 and -0 in float32 arithmetic, PyTorch's too; what is lost of silu(-10) stays an error."""
    for z, lost in ((-88.5, 2e-36), (-10.0, 1e-6)):
        w = torch.full((1, terms), z / terms, dtype=torch.float64)
        bound = linear_errors(
            torch.ones(1, terms, dtype=torch.float64), w, torch.zeros(1, dtype=torch.float64), "silu", "float32"
        ).largest.item()
        assert (bound >= abs(activated(torch.tensor(z, dtype=torch.float64), "silu").item())) == (
            z < -88
        ) and bound < lost


@pytest.mark.parametrize("values", [(1.0, 2.0, 3.0), (0.0, -5.0, 1e30)])
def test_metrics_of_an_exact_answer_are_perfect(values):
    """Every figure of the seeds is there, and none invents an error."""
    expected = torch.tensor(values, dtype=torch.float64)
    m = compare(
        expected.float().double(),
        Expectation(
            output="y", dtype="float64", expected=expected.float().double(), bound=torch.full_like(expected, 1e-9)
        ),
    ).metrics
    assert (m.max_abs, m.mean_abs, m.max_rel, m.l2_rel, m.max_ulp, m.worst_ratio) == (0, 0, 0, 0, 0, 0)
    assert m.cosine == pytest.approx(1.0) and m.sqnr_db == math.inf and sum(m.histogram) == 3


def test_kl_divergence_sees_a_shifted_distribution_and_no_rounding():
    """Histograms narrower than the bound would show rounding as a divergence of thirty nats."""
    x = torch.randn(4096, dtype=torch.float64)
    wide = Expectation(output="y", dtype="float32", expected=x, bound=torch.full_like(x, 1e-3))
    assert compare((x * 0.5).float(), wide).metrics.kl > 0.1
    assert compare(x.float(), wide).metrics.kl < 1e-6
    constant = torch.full((4096,), 0.01, dtype=torch.float64) + 1e-9 * x
    assert (
        compare(
            constant.float(),
            Expectation(output="y", dtype="float32", expected=constant, bound=torch.full_like(x, 1e-6)),
        ).metrics.kl
        == 0
    )


# hidden cases


def test_hidden_cases_keep_constraints_and_quotas():
    """About 10 % empty, about 8 % not contiguous, and nothing the definition forbids. What a brief verification always
    asks comes first: NaN wherever it may stand (a kernel that lets it through where the operator's own case has it got
    a Pass), and every kind of place.
    """
    operator = load().operator("softmax")
    draws = [hidden_cases(operator, "float32", count=24, most_elements=4096) for _ in range(5)]
    found = [case for draw in draws for case in draw]
    assert len(found) >= 110
    assert all(
        operator.violated(case.axes, "float32", {}) is None and elements(operator, case) <= 4096 for case in found
    )
    empty = sum(elements(operator, case) == 0 for case in found) / len(found)
    irregular = sum(case.layout not in ("contiguous", "fenced", *PLACES) for case in found) / len(found)
    assert 0.04 <= empty <= 0.16 and 0.04 <= irregular <= 0.14
    for first, *others in draws:
        assert first.distribution == "scattered"
        assert {"fenced", "ordinary", "offset_16", "offset_32"} <= {case.layout for case in others[:5]}
    assert len({case.seed for case in found}) == len(found) and len({str(case.axes) for case in found}) > 60


def test_hidden_cases_satisfy_narrow_constraints():
    """An operator whose axes depend on each other still gets cases."""
    operator = Operator(
        name="pairs",
        about="halves",
        inputs=(TensorSpec(name="x", shape="rows cols"),),
        outputs=(TensorSpec(name="y", shape="rows cols"),),
        reference=lambda x: x,
        flops="rows * cols",
        constraints=(Constraint(name="even", expression="cols % 2 == 0 and cols >= 4", about="pairs of columns"),),
        cases=(Case(name="a", axes={"rows": 3, "cols": 8}, why="small"),),
    )
    found = hidden_cases(operator, "float32", count=20, most_elements=1024, source=random.Random(1))
    assert len(found) >= 16 and all(case.axes["cols"] % 2 == 0 for case in found)


def test_dangerous_values_are_drawn_only_where_the_definition_has_them():
    """rmsnorm is defined for special values in float16 alone: the largest float32 has no square."""
    operator = load().operator("rmsnorm")
    kinds = {
        dtype: {case.distribution for case in hidden_cases(operator, dtype, count=60, most_elements=512)}
        for dtype in ("float32", "float16")
    }
    assert "special" not in kinds["float32"] and "special" in kinds["float16"]


def test_a_reduced_suite_keeps_every_distribution_and_layout():
    """--quick may leave out sizes, not kinds."""
    operator = load().operator("softmax")
    kept = reduced(operator, operator.cases, 4096)
    assert {(case.distribution, case.layout) for case in kept} == {
        (case.distribution, case.layout) for case in operator.cases
    }
    assert len(kept) < len(operator.cases)


def test_twins_agree_where_a_lazy_cache_would_look():
    """Same ends, same sum, same extremes, same every second element, and yet not the same."""
    operator = load().operator("softmax")
    values = []
    for seed in (10, 11):
        case = Case(name="t", axes={"lead": (4,), "cols": 65}, why="", distribution="twins", seed=seed)
        arena = allocate(operator, case, "float32")
        fill(arena, operator, case, seed)
        values.append(arena.tensors("input")["x"].flatten().clone())
        arena.close()
    one, two = values
    assert not torch.equal(one, two)
    assert one[0] == two[0] and one[-1] == two[-1] and torch.equal(one[::2], two[::2])
    assert torch.equal(one.sort().values, two.sort().values)


@pytest.mark.parametrize(("name", "axis"), [("softmax", "lead"), ("matmul", None), ("mean_var", "lead")])
def test_batch_invariance_is_asked_where_rows_lead(name, axis):
    """A row means something only where a variadic axis leads every output."""
    assert leading_axis(load().operator(name)) == axis


# verdicts


def test_a_right_kernel_passes_and_says_what_was_found(judged):
    """Determinism, fresh content and hidden cases are stated, with the seeds of all of them."""
    verdict = judged("def run(x, bias):\n    return x + bias\n")
    assert isinstance(verdict, Pass), verdict
    assert (
        verdict.states("deterministic") is True
        and verdict.states("no_answer_kept") is True
        and verdict.states("hidden_cases") is True
    )
    assert verdict.states("batch_invariant") is None
    assert all(checked.case.seed is not None for checked in verdict.checked)
    assert verdict.worst is not None and from_json(json.loads(json.dumps(to_json(verdict)))) == verdict


def test_a_row_that_depends_on_its_batch_is_stated_not_failed(judged):
    """Within the bound, other bits: the reader decides whether that matters."""
    # the next number up: always another one, and always within the bound; an infinity has none
    source = """
    import torch

    def run(x):
        sums = x.sum(-1)
        above = torch.nextafter(sums, torch.full_like(sums, float("inf"))).where(sums.isfinite(), sums)
        return sums if x.numel() // max(1, x.shape[-1]) != 1 else above
    """
    verdict = judged(source, operator="row_sum", effort=DEFAULT)
    assert isinstance(verdict, Pass), verdict
    assert verdict.states("batch_invariant") is False


def test_a_kernel_that_is_not_deterministic_is_stated_not_failed(judged):
    """Split sums added in any order are right, and the reader should know."""
    source = """
    import torch


    def run(x):
        return x[..., torch.randperm(x.shape[-1])].sum(-1)
    """
    verdict = judged(source, operator="row_sum", effort=DEFAULT)
    assert isinstance(verdict, Pass), verdict
    (said,) = [statement for statement in verdict.statements if statement.name == "deterministic"]
    assert said.holds is False and "DETERMINISTIC = False" in said.detail


BIAS_ONLY = "def run(x, bias):\n    return bias.expand_as(x).clone()\n"
TAIL = """
def run(x, bias):
    y = x + bias
    y[:, x.shape[1] // 128 * 128:] = 0 if x.shape[1] > 128 else y[:, x.shape[1] // 128 * 128:]
    return y
"""
SWAPPED = "def run(x, bias):\n    return (x + bias).t().reshape(x.shape).contiguous()\n"


@pytest.mark.parametrize(
    ("source", "cause"),
    [(BIAS_ONLY, "the output is the input bias"), (TAIL, "mask of the last block"), (SWAPPED, "swapped")],
    ids=["bias_only", "tail_mask", "swapped_axis"],
)
def test_planted_bugs_get_a_mismatch_with_its_evidence(judged, source, cause):
    """The first is the broadcast example of the seeds, which wrote only the bias and passed there."""
    verdict = evidence(judged(source))
    assert cause in verdict.cause
    assert verdict.window is not None and any(any(row) for row in verdict.window.wrong)


def test_a_failing_case_is_shrunk_and_replays(judged, guest, host):
    """The smallest that still fails is shown; the first one is kept; the same seed gives the same wrong element."""
    source = "def run(x, bias):\n    y = x + bias\n    y[:, 16:] = 0\n    return y\n"
    verdict = evidence(judged(source, effort=dataclasses.replace(QUICK, shrink_s=30.0)))
    assert verdict.shrunk_from is not None and verdict.shrunk_from.axes["cols"] > 30
    assert verdict.case.axes == {"rows": 1, "cols": 17}
    again = evidence(judged_again(guest, host, verdict.case))
    assert (again.index, again.actual, again.expected) == (verdict.index, verdict.actual, verdict.expected)


def judged_again(guest, host, case):
    """Verify one recorded case on its own."""
    registry = load([guest.__closure__[0].cell_contents / "home"])
    bench = CaseCache(registry=registry, operator=registry.operator("guest_add"), host=host, device="cpu")
    try:
        return verify(bench, registry.implementation("guest_add", "torch_tested"), "float32", cases=[case])
    finally:
        bench.close()


def test_shrinking_keeps_the_kind_of_failure():
    """A smaller case that fails in another way is another bug."""
    operator = load().operator("softmax")
    case = Case(name="big", axes={"lead": (8, 4), "cols": 300}, why="", distribution="large", layout="sliced", seed=3)
    broken = Broken(case=case, dtype="float32", reason="past the end: 4 bytes", isolation="")

    def attempt(smaller):
        cols = smaller.axes["cols"]
        return Broken(
            case=smaller,
            dtype="float32",
            reason="past the end: 8 bytes" if cols > 100 else "input x was modified",
            isolation="",
        )

    found = shrink(operator, "float32", broken, attempt, 5.0).verdict
    assert found.shrunk_from == case
    assert found.case.axes["cols"] == 101 and found.case.layout == "contiguous" and found.case.distribution == "normal"


FORGER = """
import sys

def forge(executor):
    handle = executor.handle

    def handle_instead(message, fds=()):
        answer = handle(message, fds)
        return {**answer, %s} if message["do"] == "bind" else answer

    executor.handle = handle_instead

def run(x, bias):
    frame = sys._getframe()
    while frame:
        if "executor" in frame.f_locals:
            forge(frame.f_locals["executor"])
        frame = frame.f_back
    return x + bias
"""


@pytest.mark.parametrize(
    ("forged", "kind", "words"),
    [
        ('"status": "rejected", "reason": "too hard"', Broken, "refuses what its file takes: too hard"),
        ('"status": "rejected"', Crash, "not one that a worker gives"),
        ('"launch": 10**400', Crash, "not one that a worker gives"),
        ('"status": "ok"', Crash, "not one that a worker gives"),
    ],
)
def test_what_a_process_says_of_itself_is_not_believed(judged, forged, kind, words):
    """A kernel that refused, from inside, every case after its first was given a Pass on that one; a forged field was a
    traceback.
    """
    verdict = judged(FORGER % forged)
    assert isinstance(verdict, kind) and words in (verdict.reason if isinstance(verdict, Broken) else verdict.stderr)


def test_what_a_file_refuses_is_refused_in_the_same_words():
    """The parent asks the same statements as the worker, of the same memory."""
    registry = load([])
    operator, implementation = registry.operator("softmax"), registry.implementation("softmax", "cpp_twopass")
    for layout, taken in (("contiguous", True), ("transposed", False)):
        arena = allocate(operator, Case(name="c", axes={"lead": (4,), "cols": 6}, why="", layout=layout), "float32")
        given = (
            operator,
            implementation,
            arena.tensors("input"),
            arena.tensors("output"),
            {},
            {"lead": (4,), "cols": 6},
            "float32",
        )
        found = refused(*given)
        assert (found is None) == taken and (taken or found == bind(*given))
        arena.close()


def test_an_answer_kept_by_address_is_found(judged):
    """Inputs change behind the pointer; the kernel that looks only at the pointer is wrong (CUDA-L1's cheat)."""
    source = """
    known = {}


    def run(x, bias):
        key = (x.data_ptr(), x.shape)
        if key not in known:
            known[key] = x + bias
        return known[key].clone()
    """
    verdict = judged(source)
    assert isinstance(verdict, Mismatch) and verdict.after is not None
    assert verdict.after.seed != verdict.case.seed and "kept" in verdict.cause


@pytest.mark.parametrize("wrong_call", [1, 2, 30])
def test_a_race_is_found_and_named(judged, wrong_call):
    """The first run of a case, the one with other memory around it, or one of its three hundred repeats is wrong.

    Nothing is cut short by a clock: on a loaded machine the repeats end before the thirtieth call.
    """
    source = f"""
    import itertools

    calls = itertools.count(1)


    def run(x, bias):
        y = x + bias
        if next(calls) == {wrong_call}:
            y[..., :1] += 1
        return y
    """
    verdict = judged(source, effort=dataclasses.replace(DEFAULT, seconds=1e9))
    assert isinstance(verdict, Mismatch) and RACE in verdict.cause


def test_an_accumulator_that_gives_way_is_named_with_its_length(judged):
    """Right for short rows, wrong for long ones, by little: the evidence is in the lengths."""
    source = (
        "import torch\n\n\ndef run(x):\n    return x.sum(-1) + (0.00005 * x.abs().sum(-1) if x.shape[-1] >= 1000 "
        "else 0)\n"
    )
    verdict = judged(source, operator="row_sum", effort=DEFAULT)
    assert isinstance(verdict, Mismatch) and "accumulator" in verdict.cause and "from K = 1" in verdict.cause


def test_wrong_kernels_get_no_time(guest, host):
    """A time without a Pass is never allowed to exist."""
    from opforge.timing import Plan
    from opforge.workbench import BenchOptions, bench

    home = guest(right="def run(x, bias):\n    return x + bias\n", bias_only=BIAS_ONLY, tail=TAIL)
    options = BenchOptions(dtypes=("float32",), backends=("torch",), plan=Plan(samples=5, budget_s=0.05))
    records = list(bench(load([home]), ["guest_add"], options, host))
    found = {record.implementation: record for record in records}
    assert found["torch_right"].timing is not None
    for name in ("torch_bias_only", "torch_tail"):
        evidence(found[name].verdict)
        assert found[name].timing is None


# quantisation


def test_kernel_error_and_quantisation_error_are_two_figures():
    """What the format loses is not the kernel's fault, and a kernel's fault must not hide behind it."""
    operator = Operator(
        name="twice",
        about="2x",
        inputs=(TensorSpec(name="x", shape="n", dtype="float8_e4m3fn"),),
        outputs=(TensorSpec(name="y", shape="n", dtype="float32"),),
        reference=lambda x: 2 * x,
        flops="n",
        dtypes=("float32",),
    )
    original = torch.randn(512, generator=torch.Generator().manual_seed(1)) * 200
    narrow = original.clamp(-448, 448).to(torch.float8_e4m3fn)
    case = Case(name="q", axes={"n": 512}, why="")
    (right,) = two_errors(operator, case, "float32", {"x": original}, {"x": narrow}, {"y": narrow.float() * 2})
    (wrong,) = two_errors(operator, case, "float32", {"x": original}, {"x": narrow}, {"y": narrow.float() * 2.02})
    assert right.kernel_agrees and right.kernel.max_abs == 0 and not wrong.kernel_agrees
    assert right.quantisation == wrong.quantisation and 15 < right.quantisation.sqnr_db < 45
    assert (
        right.clip_ratio["x"]
        == clip_ratio(original, "float8_e4m3fn")
        == pytest.approx(float((original.abs() > 448).float().mean()))
    )


# the command


@pytest.mark.campaign
def test_the_command_writes_a_page_and_replays_a_failure(guest, tmp_path, monkeypatch):
    """What a person does: verify, look at the page, run the failing case again on the very same values."""
    from typer.testing import CliRunner

    from opforge.cli.app import command_line

    app = command_line()
    from opforge.store import Store

    monkeypatch.chdir(tmp_path)
    home = guest(right="def run(x, bias):\n    return x + bias\n", tail=TAIL)
    store = str(tmp_path / "records.sqlite")
    before = ["--home", str(home), "--store", store]
    run = CliRunner().invoke(
        app, [*before, "verify", "guest_add", "--backend", "torch", "--dtype", "float32", "--quick"]
    )
    assert run.exit_code == 1, run.output
    page = (tmp_path / "reports" / "verification" / "guest_add.html").read_text()
    assert (
        "Likely cause" in page
        and "mask of the last block" in page
        and page.count("<svg") >= 3
        and "<script" not in page
    )
    with Store.open(store) as records:
        found = {record.implementation: record for record in records.query(operator="guest_add")}
    for name in ("torch_tail", "torch_right"):
        again = CliRunner().invoke(app, [*before, "verify", "--replay", found[name].id[:12]])
        assert again.exit_code == 0 and "the same, with the recorded source" in again.output, again.output
    (home / "guest_add" / "torch_tail.py").write_text("def run(x, bias):\n    return x + bias\n")
    mended = CliRunner().invoke(app, [*before, "verify", "--replay", found["torch_tail"].id[:12]])
    assert mended.exit_code == 1 and "not the same: the source has changed since" in mended.output


def test_a_workload_is_not_taken_for_a_case_of_its_name():
    """Generated operators have a case and a workload "large": compared was 3 x 7 x 65 instead of 2^26 elements."""
    registry = load()
    case = Case(name="large", axes={"shape": (3, 7)}, why="values", distribution="large")
    workload = Case(name="large", axes={"shape": (64, 64)}, why="a size")
    with closing(CaseCache(registry=registry, operator=registry.operator("silu"), host=None, device="cpu")) as cases:
        small, large = cases.prepare(case, "float32"), cases.prepare(workload, "float32")
        assert (small.arena.tensor("x").numel(), large.arena.tensor("x").numel()) == (21, 4096)
        assert cases.prepare(case, "float32") is small and cases.successor(small).arena is small.arena
        cases.forget(workload)
        assert cases.prepare(case, "float32") is small and cases.prepare(workload, "float32") is not large
