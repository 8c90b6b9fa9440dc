"""The table in C++ that calls are looked up in: what it answers, and what it hands on."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from opforge.core.language.errors import UsageError
from opforge.dispatch import Chooser, function_of
from opforge.registry import load
from test_front_door import Preferring, close

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="it is compiled: apt-get install g++")


@pytest.fixture(params=["keys", "functions"])
def tabled(request, monkeypatch):
    """An operator whose calls are looked up in C++: by the keys of PyTorch's dispatcher, and as where they cannot be
    read.
    """
    if request.param == "functions":
        monkeypatch.setattr("opforge.dispatch.call_table._casting", lambda module: ())
    softmax = function_of("softmax", Preferring(load()))
    softmax(torch.randn(2, 3))
    if softmax._table is None:
        pytest.skip("no table: it needs Python's headers")
    return softmax


def slowly(monkeypatch):
    """Grows with each call that the table hands on: what such a call asks first is counted."""
    asked = []
    monkeypatch.setattr("opforge.dispatch.function._is_compiling", lambda: bool(asked.append(1)))
    return asked


def test_a_known_class_is_answered_by_the_table_alone(tabled, monkeypatch):
    """Shapes, strides, dtypes, parameters and gradients are told apart; the second call of each asks Python nothing."""
    asked = slowly(monkeypatch)
    kinds = [
        torch.randn(4, 6),
        torch.randn(6, 4).t(),
        torch.randn(4, 6).half(),
        torch.randn(2, 2, 6),
        torch.nn.Parameter(torch.randn(4, 6)),
        torch.randn(3, 8)[:, :6],
    ]
    for x in kinds:
        tabled(x)
    first = len(asked)
    assert first >= len(kinds)
    for x in kinds:
        found = tabled(x)
        assert found.requires_grad == x.requires_grad and found.dtype == x.dtype
        # rounded once to its dtype, after a few operations in float32
        close = torch.finfo(found.dtype).eps / 2 + 2**-20
        torch.testing.assert_close(found.double(), x.double().softmax(-1), rtol=close, atol=0)
    assert len(asked) == first
    with torch.no_grad():
        assert not tabled(kinds[4]).requires_grad


def test_whatever_is_unusual_leaves_the_table(tabled, monkeypatch):
    """Modes, transforms, autocast, tracing, subclasses and tensors without memory."""
    x = torch.randn(2, 3)
    asked = slowly(monkeypatch)

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    class Own(torch.Tensor):
        pass

    def inside(mode, call=lambda: tabled(x)):
        before = len(asked)
        with mode:
            call()
        return len(asked) > before

    assert not inside(torch.no_grad())
    assert inside(Watch())
    # softmax computes in the dtype that it is given; a product does not
    assert not inside(torch.autocast("cpu", dtype=torch.bfloat16))
    matmul = function_of("matmul", tabled.chooser)
    matmul(x, x.t())
    matmul(x, x.t())
    assert not inside(torch.no_grad(), lambda: matmul(x, x.t()))
    assert inside(torch.autocast("cpu", dtype=torch.bfloat16), lambda: matmul(x, x.t()))
    assert inside(forward_ad.dual_level())
    assert inside(torch.no_grad(), lambda: torch.vmap(tabled)(x))
    assert inside(torch.no_grad(), lambda: tabled(x.as_subclass(Own)))
    assert inside(torch.no_grad(), lambda: tabled(x.to("meta")))
    with pytest.raises(UsageError):
        tabled(x, x)
    close(tabled(x), x.softmax(-1))


def test_the_table_is_compiled_where_it_can_be():
    """A table that no longer compiles was no failure anywhere: calls were slower, and right."""
    from opforge.dispatch import call_table

    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file() or call_table._exchange() is None:
        pytest.skip("Python's headers or DLPack's exchange are not here")
    call_table._module.cache_clear()
    assert call_table._module() is not None
    assert len(call_table._casting(call_table._module())) in (0, 4)


def test_every_state_of_pytorchs_has_calls_of_its_own(tabled, monkeypatch):
    """What is kept in inference mode is answered there the next time, and not outside of it."""
    x = torch.randn(2, 3)
    with torch.inference_mode():
        tabled(x)
        asked = slowly(monkeypatch)
        assert tabled(x).is_inference() and not asked
    assert not tabled(x).is_inference()


def test_a_kernel_is_called_with_strides_as_they_are(monkeypatch):
    """A transposed operand went through views made by Python: three times the cost. What PyTorch negates as it reads
    has the strides of a plain view, and is made plain first.
    """
    matmul = function_of("matmul", Preferring(load()))
    asked = slowly(monkeypatch)
    z = torch.randn(4, 6, dtype=torch.complex64)
    b = torch.randn(6, 3)
    lain = [torch.randn(6, 4).t(), torch.randn(4, 12)[:, ::2], torch.randn(4, 1).expand(4, 6), z.imag, z.conj().imag]
    for a in lain:
        matmul(a, b)
        before = len(asked)
        torch.testing.assert_close(matmul(a, b), a.resolve_neg() @ b, atol=3e-6, rtol=0)
        assert len(asked) == before or matmul._table is None
    assert lain[-1].is_neg() and not lain[-2].is_neg()
    torch.testing.assert_close(matmul(z.imag, b), z.imag @ b, atol=3e-6, rtol=0)


def test_a_kernel_that_refuses_is_asked_another_way():
    """False, or an error of the kernel's, is no result: the way through Python answers, and raises what there is."""
    import tvm_ffi

    from opforge.dispatch import call_table
    from opforge.runner.worker.prepared_call import Fresh, PreparedCall

    def failing(*given):
        raise ValueError("of the kernel")

    x, y = torch.randn(2, 3), Fresh(lambda *given: torch.zeros(*given), (2, 3))
    for kernel in (lambda *given: False, failing, lambda *given: None):
        bound = tvm_ffi.convert(kernel)
        call = PreparedCall(run=lambda tensors: ("otherwise", *tensors), makers=(y, y), bound=bound)
        found = call_table.native_call(call)
        if found is None:
            pytest.skip("no table")
        assert found((x,)) == ("otherwise", x)
        assert found(("no tensor",)) == ("otherwise", "no tensor")
    both = call_table.native_call(PreparedCall(run=failing, makers=(y, y), bound=tvm_ffi.convert(lambda *given: True)))
    first, second = both((x,))
    assert first.shape == second.shape == (2, 3) and first is not second
    broken = PreparedCall(run=lambda tensors: "otherwise", makers=(Fresh(failing, ()),), bound=bound)
    assert call_table.native_call(broken)((x,)) == "otherwise"
    assert call_table.native_call(PreparedCall(run=failing, makers=(lambda tensors: x,), bound=bound)) is None


@pytest.mark.parametrize("name", ["softmax", "layernorm"])
def test_a_call_that_is_kept_for_autograd_keeps_what_its_gradient_asks_for(name, monkeypatch):
    """By PyTorch's own function for it, and past it: the same gradients, a second time too, and saved-tensor hooks see
    the same tensors.
    """

    def gradients():
        function = function_of(name, Preferring(load()))
        torch.manual_seed(1)
        weights = [torch.randn(8, requires_grad=True) for _ in function.operator.inputs[1:]]
        inputs = [torch.randn(3, 8, requires_grad=True), *weights]
        function(*inputs)
        packed = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(tuple(t.shape)) or t, lambda t: t):
            output = function(*inputs)
        incoming = torch.linspace(-1, 1, output.numel()).reshape(output.shape)
        first = torch.autograd.grad((output * incoming).sum(), inputs, create_graph=True)
        second = torch.autograd.grad(first[0].square().sum(), inputs[0])
        return packed, (*first, *second)

    packed, found = gradients()
    monkeypatch.setattr("opforge.backends.torch_private.SAVES_DIRECTLY", False)
    again, other = gradients()
    assert packed == again and packed
    assert all(torch.equal(one, two) for one, two in zip(found, other, strict=True))


def test_the_table_forgets_with_the_function(tabled):
    x = torch.randn(2, 3)
    tabled(x)
    assert len(tabled._table) >= 1
    tabled.forget()
    assert len(tabled._table) == 0
    close(tabled(x), x.softmax(-1))
    assert len(tabled._table) == 1


def test_without_a_table_calls_are_looked_up_in_python(monkeypatch):
    """No compiler, no headers of Python, a cache that cannot be written, another DLPack: the same results."""
    monkeypatch.setattr("opforge.dispatch.function.call_table", lambda slow: None)
    softmax, x = function_of("softmax", Chooser(load())), torch.randn(2, 3)
    for _ in range(2):
        close(softmax(x), x.softmax(-1))
    assert softmax._table is None


@pytest.mark.parametrize("broken", ["OSError", "no exchange"])
def test_a_table_that_cannot_be_had_is_none(broken, monkeypatch):
    from opforge.dispatch import call_table

    def refuse(*asked, **named):
        raise PermissionError("read-only")

    if broken == "OSError":
        call_table._module.cache_clear()
        monkeypatch.setattr(call_table.native, "helper_path", refuse)
        assert call_table.call_table(lambda *asked: None) is None
        call_table._module.cache_clear()
    else:
        made = call_table._module()
        if made is not None:
            with pytest.raises((TypeError, ValueError)):
                made.CallTable(None, (), (), None, None, {}, "", {}, "", None)
