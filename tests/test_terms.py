"""Like is compared with like: each time states its terms, and a baseline is what a user calls, accurate or not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from opforge.core.definition.implementation import Rejected, fallback
from opforge.core.definition.operator import Case, Workload
from opforge.core.evidence.record import terms_of
from opforge.core.evidence.timing_terms import CALL, OUT, terms_or_then
from opforge.core.evidence.verdict import Inaccurate, Pass
from opforge.core.language.errors import UsageError
from opforge.registry import load
from opforge.report import view
from opforge.runner import Isolated, Launch, bind
from opforge.timing import Plan
from opforge.verify import QUICK, compare
from opforge.verify.oracle.expectation import consult
from opforge.workbench import BenchOptions, bench

X = torch.randn(64, 48)


def bound(operator: str, implementation: str, inputs, outputs, axes, scalars=None) -> Launch:
    registry = load([])
    launch = bind(
        registry.operator(operator),
        registry.implementation(operator, implementation),
        inputs,
        outputs,
        scalars or {},
        axes,
        "float32",
    )
    assert not isinstance(launch, Rejected)
    return launch


def test_a_kernel_is_called_as_the_front_door_calls_it_and_makes_its_result():
    """torch's time includes making its result; so must ours, or 1.02 is published as 1.63."""
    there = torch.full((64, 48), torch.nan)
    into = bound("relu", "cpp_bits", {"x": X}, {"y": there}, {"shape": (64, 48)})
    assert into.terms == OUT
    call = into.on(CALL)
    assert call is not None and call.terms == CALL and call.made == (64 * 48 * 4,)
    call.ready()
    call.run()
    first = call.read()["y"]
    assert torch.equal(first, X.relu()) and there.isnan().all()  # in memory of its own
    call.run()
    assert call.read()["y"].data_ptr() != first.data_ptr()  # and the last result is its caller's


def test_torch_writes_into_memory_that_is_there_where_its_function_can():
    there = torch.full((64, 48), torch.nan)
    call = bound("softmax", "torch_eager", {"x": X}, {"y": there}, {"lead": (64,), "cols": 48})
    assert call.terms == CALL
    into = call.on(OUT)
    assert into is not None
    into.run()
    assert torch.equal(there, X.softmax(-1))
    # F.gelu has no out=
    assert (
        bound("gelu", "torch_eager", {"x": X}, {"y": there}, {"shape": (64, 48)}, {"approximate": "none"}).on(OUT)
        is None
    )


def test_a_gradient_is_timed_with_what_the_forward_pass_left_and_follows_its_inputs():
    """What is kept from the forward pass is made before a clock starts, and again whenever the inputs have changed."""
    x, dy = X.clone(), torch.randn(64, 48)
    tensors = {"x": x, "weight": torch.rand(48), "dy": dy}
    registry = load([])
    operator = registry.operator("layernorm_backward")
    outputs = {"dx": torch.empty_like(x), "dweight": torch.empty(48), "dbias": torch.empty(48)}
    found = bind(
        operator,
        registry.implementation(operator.name, "torch_eager"),
        tensors,
        outputs,
        {"eps": 1e-5},
        {"lead": (64,), "cols": 48},
        "float32",
    )
    assert not isinstance(found, Rejected)
    launch = found
    case = Case(name="c", axes={"lead": (64,), "cols": 48}, why="", scalars={"eps": 1e-5})

    def dx_is_right() -> bool:
        (dx,) = (one for one in consult(operator, case, "float32", tensors).expectations if one.output == "dx")
        return compare(launch.read()["dx"], dx).agrees

    for _ in range(2):
        launch.ready()
        launch.run()
        assert dx_is_right()
        x.copy_(torch.randn(64, 48) * 3)
    launch.run()  # inputs have changed, and nobody said so
    assert not dx_is_right()


@pytest.mark.campaign
def test_times_on_both_terms_are_kept_apart_and_an_inaccurate_baseline_is_timed_and_says_so():
    registry = load([])
    operator = registry.operator("mean_var")
    registry._loaded["mean_var"] = replace(
        operator, workloads=(Workload(name="tiny", axes={"lead": (64,), "cols": 96}, source="a test", scale="laptop"),)
    )
    plan = Plan(samples=5, budget_s=0.05)
    options = BenchOptions(
        device="cpu", backends=("torch", "cpp"), dtypes=("float32",), effort=QUICK, plan=plan, terms=(CALL, OUT)
    )
    host = Isolated()
    try:
        records = list(bench(registry, ["mean_var"], options, host))
    finally:
        host.close()
    eager = [record for record in records if record.implementation == "torch_eager"]
    # torch.var_mean makes NaN of the mean of a row that holds an infinity
    assert (
        [type(record.verdict) for record in eager] == [Inaccurate]
        and eager[0].timing is not None
        and terms_of(eager[0]) == CALL
    )
    assert [terms_of(record) for record in records if record.backend == "cpp"] == [CALL, OUT]
    assert all(
        isinstance(record.verdict, Pass)
        for record in records
        if record.implementation in ("torch_definition", "cpp_rows", "cpp_twopass")
    )
    found = {group.terms: group for group in view.groups(records)}
    assert found[CALL].over_alternative is not None and found[OUT].over_alternative is None
    assert found[CALL].best_alternative is not None and found[CALL].best_alternative.implementation == "torch_eager"
    # nothing is believed of the same verdict under a kernel's name
    assert view.timing_of(replace(eager[0], backend="cpp")) is None


def test_records_that_state_no_terms_are_read_as_what_they_were():
    assert [terms_or_then("", backend) for backend in ("torch", "compile", "library", "cpp", "cuda", "triton")] == [
        CALL,
        CALL,
        CALL,
        OUT,
        OUT,
        OUT,
    ]


def test_where_nothing_is_verified_what_is_called_is_right():
    """A baseline that says it is inaccurate is nobody's fallback; one that is accurate is what a user would have
    called.
    """
    registry = load([])
    assert fallback(registry.implementations("mean_var")).name == "torch_definition"
    assert fallback(registry.implementations("relu")).name == "torch_eager"
    # parts of a long sum are rounded to bfloat16 by default
    assert fallback(registry.implementations("matmul")).name == "torch_definition"
    for operator in registry.names():
        assert not fallback(registry.implementations(operator)).inaccurate


def test_only_a_baseline_may_be_inaccurate(tmp_path):
    from opforge.registry.implementation_files import read_implementation

    (tmp_path / "triton_fast.py").write_text('"""Fast."""\n\nINACCURATE = "it is fast"\n')
    with pytest.raises(UsageError, match="only baselines"):
        read_implementation("softmax", tmp_path, "triton_fast")
