"""Elementwise, broadcasting and layout operators: what the verifier's cases do not ask."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from opforge.core.definition.device import Ceiling, DeviceSpec
from opforge.core.definition.operator import Cost
from opforge.core.language.errors import UsageError
from opforge.machine import descriptors
from opforge.registry import load
from opforge.roofline import estimate_conversion

NEW = (
    *("add_scalar", "silu", "scale_shift", "broadcast_add", "gelu_backward", "silu_mul_backward"),
    *("transpose", "nchw_to_nhwc", "nhwc_to_nchw", "to_blocked", "from_blocked"),
)
MOVES = Cost(flops=0, bytes_read=10**8, bytes_written=10**8)


def device(rate: float | None = 4e12) -> DeviceSpec:
    copy = (
        ()
        if rate is None
        else (Ceiling(name="copy", value=rate, unit="B/s", measured_at="2026-11-21", how="for a test"),)
    )
    return replace(descriptors()["nvidia-h200"], cache_bytes=10**6, nominal_bytes_per_s=0.0, ceilings=copy)


@pytest.mark.parametrize("name", NEW)
def test_every_backend_that_makes_sense_is_there(name):
    """The baseline, its compiled twin, and one implementation each for NVIDIA, for any GPU and for a CPU."""
    registry = load()
    assert {"torch", "compile", "triton", "cuda", "cpp"} <= {item.backend for item in registry.implementations(name)}
    operator = registry.operator(name)
    assert {"laptop", "gpu"} <= {workload.scale for workload in operator.workloads}
    assert operator.folder is not None
    assert (operator.folder / "README.md").is_file()


def test_a_conversion_pays_from_the_use_on_that_makes_up_for_it():
    """200 MB at 4 TB/s are 50 us; each use saves 20 us, so two are a loss and three a gain."""
    found = estimate_conversion(MOVES, spec=device(), gain_s=20e-6, fraction=1.0)
    assert found.time_s == pytest.approx(50e-6)
    assert found.uses_to_pay == 3
    assert not found.pays(2)
    assert found.pays(3)
    assert found.saved_s(3) == pytest.approx(10e-6)
    assert found.rate_source == "measured"


def test_there_and_back_costs_twice():
    assert estimate_conversion(MOVES, MOVES, spec=device(), gain_s=20e-6, fraction=1.0).uses_to_pay == 6


def test_a_layout_that_gains_nothing_never_pays():
    found = estimate_conversion(MOVES, spec=device(), gain_s=0.0)
    assert found.uses_to_pay is None
    assert not found.pays(10**9)


def test_an_unknown_memory_is_not_guessed():
    with pytest.raises(UsageError, match="opforge machine --again"):
        estimate_conversion(MOVES, spec=device(None), gain_s=1e-6)


def normal_cdf(x: np.ndarray) -> np.ndarray:
    """device_math.h's normal_cdf, operation by operation in float32."""
    f = np.float32
    t = f(1) / (f(0.23164189) * np.abs(x) + f(1))
    p = f(0.530702715)
    for coefficient in (-0.726576014, 0.710706871, -0.142248368, 0.127414796):
        p = p * t + f(coefficient)
    tail = p * t * np.exp2(x * x * f(-0.72134752))
    return np.where(x > 0, f(1) - tail, tail)


def test_the_gpu_normal_cdf_is_as_near_as_its_header_says():
    """gelu's bound allows 7e-7 of |x|; one coefficient off by 1e-6 exceeds it."""
    x = np.concatenate([np.linspace(-14, 14, 200_001), np.geomspace(1e-20, 1, 2001)]).astype(np.float32)
    exact = np.array([0.5 * math.erfc(-float(v) / math.sqrt(2)) for v in x])
    assert np.abs(normal_cdf(x) - exact).max() < 3e-7


def test_an_elementwise_call_makes_no_views(monkeypatch):
    """A view costs as much as an addition; kernels that take any rank get tensors as they are."""
    import torch

    from opforge.dispatch import Choice, Chooser, Function

    registry = load()
    chosen = next(item for item in registry.implementations("vector_add") if item.backend == "cpp")
    assert chosen.any_rank
    chooser = Chooser(registry)
    monkeypatch.setattr(
        chooser,
        "choose",
        lambda *arguments: Choice(implementation=chosen, config=chosen.default, why="asked", passed_over=()),
    )
    monkeypatch.setattr(Function, "_register", lambda self: None)  # the real function keeps its name in PyTorch
    add = Function(registry.operator("vector_add"), chooser)
    x, y = torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    assert torch.equal(add(x, y), x + y)
    with monkeypatch.context() as without:
        without.setattr(torch.Tensor, "view", None)
        assert torch.equal(add(y, y), y + y)
    # every second element: what a kernel does not take is not hidden from it
    with pytest.raises(ValueError, match="contiguous"):
        add(torch.randn(10)[::2], torch.randn(10)[::2])


class FakeJit:
    """Triton's JITFunction as far as a replay sees it: no GPU is here to launch on."""

    arg_names = ("x_ptr", "y_ptr", "n", "BLOCK")
    pre_run_hooks = ()
    launch_metadata = None

    def __init__(self):
        self.fronts, self.launches = 0, []

    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

    def run(self, *args, grid, warmup, **kwargs):
        self.fronts += 1
        return SimpleNamespace(
            run=lambda *given: self.launches.append(given), function="cubin", packed_metadata="packed"
        )


def repeated(monkeypatch, launch):
    """A Repeated of `launch(jit, x, y)` and the jit that it launches."""
    from triton.runtime import jit as triton_jit

    from opforge.backends import torch_private
    from opforge.backends.triton_replay import Repeated

    jit, module = FakeJit(), ModuleType("kernels")
    module.kernel = jit
    monkeypatch.setattr(triton_jit, "JITFunction", FakeJit)
    monkeypatch.setattr(torch_private, "current_gpu", lambda: -1)
    monkeypatch.setattr(torch_private, "current_stream", lambda device: 7)
    return Repeated(lambda inputs, outputs, scalars: launch(jit, *inputs, *outputs), module), jit


def test_a_triton_launch_is_made_again_with_other_tensors(monkeypatch):
    """The second call does not pass through Triton's front, and hands on its own tensors."""
    import torch

    run, jit = repeated(monkeypatch, lambda jit, x, y: jit[(3,)](x, y, 64, BLOCK=32, num_warps=4))
    first, second = (torch.zeros(64), torch.zeros(64)), (torch.ones(64), torch.ones(64))
    run(first[:1], first[1:], {})
    run(second[:1], second[1:], {})
    assert jit.fronts == 1
    ((*grid, stream, function, packed, metadata, _, _, x, y, n, block),) = jit.launches
    assert (grid, stream, function, packed, metadata, n, block) == ([3, 1, 1], 7, "cubin", "packed", None, 64, 32)
    assert x is second[0]
    assert y is second[1]


def test_a_kernel_that_operators_share_is_launched_again_too(monkeypatch):
    """It stands in a module of opforge, and the operator's file imports only the function that launches it."""
    import torch

    shared, operator = ModuleType("opforge.device.triton_imagined"), ModuleType("kernels")
    run, jit = repeated(monkeypatch, lambda jit, x, y: jit[(3,)](x, y, 64, BLOCK=32))
    shared.kernel = jit
    operator.launch_shared = lambda: None
    operator.launch_shared.__module__ = shared.__name__
    monkeypatch.setitem(sys.modules, shared.__name__, shared)
    run.module = operator
    x, y = torch.zeros(64), torch.zeros(64)
    for _ in range(3):
        run((x,), (y,), {})
    assert (jit.fronts, len(jit.launches)) == (1, 2)


@pytest.mark.parametrize(
    "why", ["zeroes its output", "launches twice", "another alignment", "other scalars", "an address as a number"]
)
def test_a_launch_that_cannot_be_repeated_is_not(monkeypatch, why):
    """Left out, the zeroing would leave the sum of two calls in the output: a wrong answer at a good speed."""
    import torch

    def launch(jit, x, y):
        if why == "zeroes its output":
            y.zero_()
        for _ in range(2 if why == "launches twice" else 1):
            jit[(3,)](x, y, x.data_ptr() if why == "an address as a number" else 64, BLOCK=32)

    run, jit = repeated(monkeypatch, launch)
    x, y, longer = torch.zeros(64), torch.zeros(64), torch.zeros(65)
    run((x,), (y,), {"eps": 1.0})
    fronts = jit.fronts
    run((longer[1:] if why == "another alignment" else x,), (y,), {"eps": 2.0 if why == "other scalars" else 1.0})
    assert jit.fronts == 2 * fronts
    assert jit.launches == []


def test_a_call_on_one_tensor_twice_says_nothing_of_the_next(monkeypatch):
    """add(x, x) would be repeated as add(a, a) for add(a, b)."""
    import torch

    run, jit = repeated(monkeypatch, lambda jit, x, y: jit[(3,)](x, y, 64, BLOCK=32))
    same, x, y = torch.zeros(64), torch.zeros(64), torch.zeros(64)
    run((same,), (same,), {})
    for _ in range(2):
        run((x,), (y,), {})
    assert jit.fronts == 2
    assert [given[-4:-2] for given in jit.launches] == [(x, y)]
