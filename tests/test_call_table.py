"""The table in C++ that calls are looked up in: what it answers, and what it hands on."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from opforge.core.errors import UsageError
from opforge.dispatch import Chooser, function_of
from opforge.registry import load
from test_front_door import Preferring, close

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="it is compiled: apt-get install g++")


@pytest.fixture
def tabled():
    """An operator whose calls are looked up in C++, and the number of calls that were not."""
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
        call_table._table_type.cache_clear()
        monkeypatch.setattr(call_table.native, "helper_path", refuse)
        assert call_table.call_table(lambda *asked: None) is None
        call_table._table_type.cache_clear()
    else:
        made = call_table._table_type()
        if made is not None:
            with pytest.raises((TypeError, ValueError)):
                made(None, (), (), None, None, {}, "", {}, "", None)
