"""Operators as PyTorch functions: which implementation, autograd, torch.compile."""

import dataclasses
import uuid

import pytest
import torch

from opforge.core.errors import UsageError
from opforge.core.timing import Timing
from opforge.dispatch import Chooser, Function
from opforge.registry import load
from opforge.runner import Isolated
from opforge.store import Store
from opforge.workbench import Options, verify_all


@pytest.fixture(scope="module")
def registry():
    return load()


@pytest.fixture(scope="module")
def passes(registry):
    """Real verification records of softmax and layernorm on this CPU."""
    with Isolated() as host:
        return list(verify_all(registry, ["softmax", "layernorm"], Options(device="cpu", dtypes=("float32",), backends=("cpp", "torch")), host))


@pytest.fixture
def store(tmp_path):
    return str(tmp_path / "records.sqlite")


def function(registry, store, name="softmax", records=()):
    with Store.open(store) as opened:
        opened.add(list(records))
    made = Function.__new__(Function)
    made.operator = registry.operator(name)
    made.chooser = Chooser(registry, store)
    made._prepared = {}
    return made


def test_nothing_verified_means_pytorch(registry, store):
    """An unverified kernel never runs in somebody's model."""
    softmax = function(registry, store)
    x = torch.randn(4, 33)
    choice = softmax.why(x)
    assert choice.implementation.name == "torch_eager"
    assert "opforge verify softmax" in choice.why
    assert all("no Pass" in reason for _, reason in choice.passed_over)


def test_a_pass_admits_an_implementation(registry, store, passes):
    """Declared order among those that have a Pass: cpp comes before torch."""
    softmax = function(registry, store, records=passes)
    x = torch.randn(4, 33)
    choice = softmax.why(x)
    assert choice.implementation.backend == "cpp"
    torch.testing.assert_close(softmax.compute([x], {}), x.softmax(-1))


def test_a_changed_source_loses_its_pass(registry, store, passes):
    stale = [dataclasses.replace(record, source_sha256="0" * 64) for record in passes]
    assert function(registry, store, records=stale).why(torch.randn(4, 33)).implementation.name == "torch_eager"


def test_the_fastest_recorded_wins(registry, store, passes):
    def timed(record, seconds):
        timing = Timing(samples_s=(seconds,) * 5, batch=1, timer="host", cache="warm", overhead_s=0.0, conditions=())
        return dataclasses.replace(record, id=uuid.uuid4().hex, timing=timing, workload="w", axes={"lead": (4,), "cols": 33})

    softmax = [record for record in passes if record.operator == "softmax"]
    slow_cpp = [timed(record, 2.0 if record.backend == "cpp" else 1.0) for record in softmax]
    choice = function(registry, store, records=slow_cpp).why(torch.randn(4, 33))
    assert choice.implementation.name == "torch_eager" and "fastest in the records" in choice.why


def test_a_layout_it_cannot_take_goes_to_one_that_can(registry, store, passes):
    softmax = function(registry, store, records=passes)
    x = torch.randn(33, 4).t()
    choice = softmax.why(x)
    assert choice.implementation.name == "torch_eager"
    assert any("strided" in reason for _, reason in choice.passed_over)
    torch.testing.assert_close(softmax.compute([x], {}), x.softmax(-1))


def test_calls_that_do_not_fit_say_so(registry, store):
    layernorm = function(registry, store, "layernorm")
    x, w = torch.randn(4, 8), torch.randn(8)
    with pytest.raises(UsageError, match="takes 3 tensors"):
        layernorm.compute([x, w], {})
    with pytest.raises(UsageError, match="one dtype"):
        layernorm.compute([x, w.half(), w], {})
    with pytest.raises(UsageError, match="elsewhere it is"):
        layernorm.compute([x, w[:4], w], {})
    with pytest.raises(UsageError, match="no parameter 'epsilon'"):
        layernorm.compute([x, w, w], {"epsilon": 1.0})


def test_the_front_door_under_autograd_and_compile():
    """opforge.ops as a user calls it: gradients are those of PyTorch, and torch.compile keeps one graph."""
    from opforge import ops

    x = torch.randn(5, 17, dtype=torch.float32, requires_grad=True)
    w = torch.randn(17, requires_grad=True)
    b = torch.randn(17, requires_grad=True)
    wanted = torch.nn.functional.layer_norm(x, (17,), w, b, 1e-5)
    torch.testing.assert_close(ops.layernorm(x, w, b), wanted)
    gradient = torch.randn_like(wanted)
    expected = torch.autograd.grad(wanted, (x, w, b), gradient)
    found = torch.autograd.grad(ops.layernorm(x, w, b), (x, w, b), gradient)
    torch.testing.assert_close(found, expected)
    assert ops.softmax is ops.softmax
    assert "softmax" in dir(ops)
    with pytest.raises(AttributeError, match="Did you mean 'softmax'"):
        _ = ops.sofmax


@pytest.mark.slow
def test_the_front_door_inside_torch_compile():
    from opforge import ops

    def model(x, w):
        return ops.rmsnorm(x * 2, w).sum()

    x, w = torch.randn(6, 16, requires_grad=True), torch.randn(16, requires_grad=True)
    ops.rmsnorm(x, w)
    compiled = torch.compile(model, fullgraph=True)
    eager = model(x, w)
    torch.testing.assert_close(compiled(x, w), eager)
    torch.testing.assert_close(torch.autograd.grad(compiled(x, w), (x, w)), torch.autograd.grad(eager, (x, w)))


@pytest.mark.parametrize("backend", ["torch", "cpp", "cuda", "tilelang"])
def test_get_kernel_gives_each_backend(backend):
    """Seed 000's call: the raw kernel of one backend."""
    import opforge

    x = torch.randn(3, 70)
    torch.testing.assert_close(opforge.get_kernel(backend, "softmax")(x), x.softmax(-1))


def test_get_kernel_names_what_is_there():
    import opforge

    with pytest.raises(UsageError, match=r"No backend named 'cud'\. Did you mean 'cuda'"):
        opforge.get_kernel("cud", "softmax")
