"""Each private name of PyTorch: that it does on this torch what opforge takes it for, and what stands in without it."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from types import ModuleType

import pytest
import torch
from torch.autograd import forward_ad

from opforge.backends import torch_private

CPU = torch.device("cpu")
GUARDS = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
FUNCTORCH = getattr(torch._C, "_functorch", None)


def watched(x: torch.Tensor, ask) -> list:
    """What `ask` answers before and inside of torch.func.grad."""
    inside = []

    def once(value):
        inside.append(ask())
        return value.sum()

    before = ask()
    torch.func.grad(once)(x)
    return [before, *inside]


def autocast(names: ModuleType) -> bool:
    before = names.any_autocast()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (bool(before), bool(names.any_autocast())) == (False, True)


def transforms(names: ModuleType) -> bool:
    return watched(torch.ones(2), names.transforms_active) == [False, True]


def modes(names: ModuleType) -> bool:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    before = names.dispatch_modes()
    with Watching():
        return (before, names.dispatch_modes()) == (0, 1)


def tracing(names: ModuleType) -> bool:
    inside = []

    def once(x):
        inside.append(bool(names.tracing_state()))
        return x + 1

    torch.jit.trace(once, torch.ones(2), check_trace=False)
    return not names.tracing_state() and inside == [True]


def forward(names: ModuleType) -> bool:
    before = names.forward_levels._current_level
    with forward_ad.dual_level():
        return before < 0 <= names.forward_levels._current_level


def batched(names: ModuleType) -> bool:
    inside = []

    class Asking(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x.clone()

        @staticmethod
        def backward(_, incoming):
            inside.append(names.key_is_included(names.VMAP_KEY))
            return incoming

    x = torch.ones(2, requires_grad=True)
    torch.autograd.grad(Asking.apply(x), x, torch.eye(2), is_grads_batched=True)
    torch.autograd.grad(Asking.apply(x), x, torch.ones(2))
    return inside == [True, False]


def allocated(names: ModuleType) -> bool:
    fresh = names.empty_strided_cpu((2, 3), (3, 1), torch.float16)
    return fresh.shape == (2, 3) and fresh.dtype == torch.float16 and fresh.is_contiguous() and fresh.device == CPU


def differentiated(names: ModuleType) -> bool:
    return watched(torch.ones(2), names.differentiated) == [False, True]


def operators(names: ModuleType) -> bool:
    @torch.library.custom_op("opforge_test_private::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    known = [isinstance(op, names.operator_types) for op in (torch.ops.aten.add, torch.ops.aten.add.Tensor, twice)]
    return all(known) and not isinstance(torch.add, names.operator_types)


def on_gpu(names: ModuleType) -> bool:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    torch.cuda.init()
    here = torch.cuda.current_device()
    stream = torch.cuda.current_stream(here).cuda_stream
    fresh = names.empty_strided_cuda((2,), (1,), torch.float32)
    return names.current_gpu() == here and names.current_stream(here) == stream and fresh.device.index == here


def unforked(names: ModuleType) -> bool:
    return names.in_bad_fork() is False


@pytest.mark.parametrize(
    "holds",
    [
        autocast, transforms, modes, tracing, forward, batched, allocated, differentiated, operators, on_gpu, unforked,
    ],
)  # fmt: skip
def test_a_private_name_does_what_it_is_taken_for(holds):
    """On a torch where one has moved, this names it; nothing else would but a call that is slower, or wrong."""
    assert holds(torch_private)


def always(name: str, answer: object, *arguments: object):
    """A stand-in that takes the way that is always right."""
    return lambda names: getattr(names, name)(*arguments) == answer


def none(name: str):
    """Nothing stands in: callers allocate with torch's public functions."""
    return lambda names: getattr(names, name) is None


ABSENT = [
    (torch._C, "_is_any_autocast_enabled", autocast),
    (torch._C, "_are_functorch_transforms_active", always("transforms_active", True)),
    (torch._C, "_len_torch_dispatch_stack", always("dispatch_modes", 1)),
    (torch._C, "_get_tracing_state", tracing),
    (forward_ad, "_current_level", lambda names: names.forward_levels._current_level >= 0),
    (torch._C, "_dispatch_key_parse", always("key_is_included", True, None)),
    (torch._C, "_dispatch_tls_is_dispatch_key_included", always("key_is_included", True, None)),
    (GUARDS, "_empty_strided_cpu", none("empty_strided_cpu")),
    (GUARDS, "_empty_strided_cuda", none("empty_strided_cuda")),
    (torch._C, "_cuda_getDevice", lambda names: names.current_gpu is torch.cuda.current_device),
    (torch._C, "_cuda_getCurrentRawStream", lambda names: callable(names.current_stream)),
    (torch._C, "_cuda_isInBadFork", always("in_bad_fork", False)),
    (FUNCTORCH, "get_interpreter_stack", always("differentiated", True)),
    (FUNCTORCH, "TransformType", always("differentiated", True)),
    (torch._library.custom_ops, "CustomOpDef", lambda names: isinstance(torch.ops.aten.add, names.operator_types)),
]


@pytest.mark.parametrize(("place", "name", "holds"), ABSENT, ids=[name for _, name, _ in ABSENT])
def test_a_torch_without_a_private_name_has_what_stands_in(monkeypatch, place, name, holds):
    """Each was an AttributeError when opforge was imported, or at a call."""
    with monkeypatch.context() as without:
        without.delattr(place, name, raising=False)
        spec = importlib.util.spec_from_file_location("torch_private_without", torch_private.__file__)
        assert spec is not None and spec.loader is not None
        names = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(names)
    assert holds(names)


def test_inductor_says_when_it_compiles_and_dynamo_does_not(monkeypatch):
    """A loop that never ends is followed by Dynamo while it traces: a worker that counted this as compiling would have
    a compiler's time for it. Once in a process; without the places nothing is said, and that is known.
    """
    from torch._inductor import compile_fx

    inside: list[str] = []

    @contextlib.contextmanager
    def around():
        inside.append("began")
        yield
        inside.append("ended")

    assert callable(compile_fx.compile_fx) and callable(compile_fx._compile_fx_inner)
    monkeypatch.setattr(compile_fx, "compile_fx", lambda graph, inputs: graph.forward)
    monkeypatch.setattr(compile_fx, "_compile_fx_inner", lambda graph, inputs: graph.forward)

    def stage(graph, inputs):
        # called by Dynamo, when it has traced
        inside.append("traced")
        return compile_fx.compile_fx(graph, inputs)

    assert torch_private.report_inductor(around) and torch_private.report_inductor(around)
    assert torch.compile(lambda x: x + 1, backend=stage)(torch.ones(2)).tolist() == [2.0, 2.0]
    assert inside == ["traced", "began", "ended"]
    monkeypatch.delattr(compile_fx, "_compile_fx_inner")
    assert not torch_private.report_inductor(around)


def test_recompilations_are_limited_and_headers_have_a_folder():
    """What torch.compile's parts are told on this torch; told back afterwards."""
    import torch._dynamo
    from torch._inductor import codecache

    config = torch._dynamo.config
    with config.patch(recompile_limit=8, fail_on_recompile_limit_hit=False), pytest.MonkeyPatch.context() as patch:
        patch.setattr(codecache, "_HEADER_DIR", codecache._HEADER_DIR)
        patch.setattr(codecache, "_HEADER_LOCK_DIR", codecache._HEADER_LOCK_DIR)
        assert torch_private.limit_recompilations(64) and torch_private.keep_headers_in("/elsewhere")
        assert (config.recompile_limit, config.fail_on_recompile_limit_hit) == (64, True)
        assert (codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR) == ("/elsewhere", "/elsewhere/locks")


def test_a_torch_without_those_parts_says_so(monkeypatch):
    """A record must not name torch.compile where eager ran: the caller is told that nothing was limited."""
    for name in ("_dynamo", "_inductor.codecache", "_inductor.cpu_vec_isa", "_inductor.exc", "_inductor.compile_fx"):
        monkeypatch.setitem(sys.modules, f"torch.{name}", None)
    assert not torch_private.limit_recompilations(64) and not torch_private.keep_headers_in("/elsewhere")
    torch_private.warm_inductor(cpu=True)
