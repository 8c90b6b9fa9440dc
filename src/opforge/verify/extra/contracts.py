"""What a PyTorch function promises besides right values: gradients, schemas, compilation, transforms, streams, clean
hands.

Checked on the function itself, in the process that calls it, as its users will call it. Each clause stands: "held",
"broken", "not here" (this machine lacks what it needs) or "open" (the operator does not declare it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from opforge.core.definition.call_form import declared
from opforge.core.definition.operator import Operator
from opforge.verify.extra.contract_gradients import gradcheck, gradients
from opforge.verify.extra.contract_subject import ClauseBroken, Elsewhere, Open, Subject


@dataclass(frozen=True, kw_only=True)
class Clause:
    """One promise, and how it stands."""

    name: str
    standing: str
    detail: str


def check_function(
    operator: Operator,
    function: Callable[..., Any],
    custom: Any,
    *,
    dtypes: Sequence[str],
    device: str,
    gradient_operators: Sequence[Operator],
    compiler: str = "inductor",
) -> tuple[Clause, ...]:
    """Every clause for one operator.

    function             called as users call it: tensors in the operator's order, then scalars by name
    custom               the registered custom operator behind it (torch.ops.NAMESPACE.NAME.default), for opcheck
    gradient_operators   those that the definition names for its gradients (Registry.gradient_operators): they say what
                         is right, within which bound, and finite differences are asked about their references. It has
                         no default: left out where there are some, a right gradient is refused
    compiler             the backend torch.compile is given
    """
    if operator.list_axes:
        return (Clause(name="lists", standing="open", detail="its inputs are lists of tensors"),)
    subjects = [
        Subject(
            operator=operator,
            function=function,
            custom=custom,
            dtype=dtype,
            device=device,
            compiler=compiler,
            gradient_operators=tuple(gradient_operators),
        )
        for dtype in dtypes
    ]
    clauses = []
    for subject in subjects:
        clauses += [_settled(f"{name} ({subject.dtype})", clause, subject) for name, clause in EVERY_DTYPE.items()]
    clauses += [_settled(name, clause, subjects[0]) for name, clause in ONCE.items()]
    return tuple(clauses)


def _settled(name: str, clause: Callable[[Subject], str], subject: Subject) -> Clause:
    try:
        return Clause(name=name, standing="held", detail=clause(subject))
    except Elsewhere as reason:
        return Clause(name=name, standing="not here", detail=str(reason))
    except Open as reason:
        return Clause(name=name, standing="open", detail=str(reason))
    except ClauseBroken as reason:
        return Clause(name=name, standing="broken", detail=str(reason))
    # the function under test may raise anything, and whatever it is, the promise is broken
    except Exception as error:  # noqa: BLE001
        return Clause(
            name=name, standing="broken", detail=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        )


def _values(subject: Subject) -> str:
    import torch

    tensors = subject.inputs()
    before = [tensor.clone() for tensor in tensors]
    outputs = subject.call(tensors)
    subject.require_right(before, outputs, "eager")
    for spec, tensor, kept in zip(subject.operator.inputs, tensors, before, strict=True):
        if not torch.equal(tensor, kept) and spec.name not in subject.operator.overwritten:
            raise ClauseBroken(f"input {spec.name} was modified")
    own = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    memory = _made(subject, outputs)
    if own & set(memory) or len(set(memory)) < len(memory):
        raise ClauseBroken("an output shares memory with an input or another output")
    if set(memory) & set(_made(subject, subject.call(tensors))):
        raise ClauseBroken("two calls returned the same memory")
    if subject.operator.overwritten:
        return f"right; {', '.join(subject.operator.overwritten)} overwritten, and nothing else"
    return "right, inputs unmodified, outputs in memory of their own"


def _made(subject: Subject, outputs: Sequence[Any]) -> list[int]:
    """The addresses of the memory that a call made its outputs in."""
    pairs = zip(subject.operator.outputs, outputs, strict=True)
    return [output.untyped_storage().data_ptr() for spec, output in pairs if spec.overwrites is None]


def _layouts(subject: Subject) -> str:
    tensors = subject.inputs()
    strided = [_not_contiguous(tensor.clone()) for tensor in tensors]
    subject.require_right(tensors, subject.call(strided), "inputs that are not contiguous")
    return "right for inputs that are not contiguous"


def _not_contiguous(tensor: Any) -> Any:
    """The same values with other strides; a scalar has none."""
    if tensor.ndim >= 2:
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    return tensor.repeat_interleave(2)[::2] if tensor.ndim else tensor


def _opcheck(subject: Subject) -> str:
    import torch

    tensors = subject.inputs()
    for leaf in subject.floating(tensors):
        leaf.requires_grad_(True)
    results = torch.library.opcheck(subject.custom, (*tensors, *subject.scalars.values()))
    return f"torch.library.opcheck: {', '.join(name.removeprefix('test_') for name in results)}"


def _compiled(subject: Subject) -> str:
    import torch

    tensors = subject.inputs()
    scalars = declared(subject.operator, subject.case.scalars)
    torch.compiler.reset()
    compiled = torch.compile(
        lambda *given: subject.function(*given, **scalars), fullgraph=True, backend=subject.compiler
    )
    before = [tensor.clone() for tensor in tensors]
    returned = compiled(*tensors)
    subject.require_right(before, subject.outputs(tensors, returned), "compiled")
    leaves = subject.floating(tensors)
    if leaves:
        for leaf in leaves:
            leaf.requires_grad_(True)
        returned = compiled(*tensors)
        first = returned[0] if isinstance(returned, tuple) else returned
        # not a sum's: that of rows that sum to one is zero, whatever the backward does
        seed = (
            torch.linspace(0.5, 1.5, first.numel(), dtype=torch.float32, device=first.device)
            .reshape(first.shape)
            .to(first.dtype)
        )
        mine = torch.autograd.grad(first, leaves, seed, allow_unused=True)
        eager = torch.autograd.grad(subject.call(tensors)[0], leaves, seed, allow_unused=True)
        for a, b in zip(mine, eager, strict=True):
            if (a is None) != (b is None):
                raise ClauseBroken("a gradient is there in only one of compiled and eager")
            # of the largest: gradients of probabilities are all small
            if a is not None and not float((a.float() - b.float()).abs().max()) <= 1e-2 * float(b.float().abs().max()):
                raise ClauseBroken("compiled and eager gradients differ")
    return f"one graph through {subject.compiler}, forward and backward"


def _vmap(subject: Subject) -> str:
    import torch

    # two sets that were drawn, and not one of them turned: what follows from other inputs does so in each
    batched = [torch.stack(pair) for pair in zip(subject.inputs(), subject.inputs(), strict=True)]
    before = [tensor.clone() for tensor in batched]
    try:
        # it takes functions of tensors that return some
        outputs = torch.vmap(lambda *given: subject.call(given))(*batched)
    except (RuntimeError, NotImplementedError) as error:
        # without a rule torch.vmap fails in one of several ways, none of which computes anything
        reason = " ".join(str(error).split())[:200]
        raise Open(f"no vmap rule is declared; torch.vmap fails with {type(error).__name__}: {reason}") from error
    for place in range(2):
        subject.require_right(
            [tensor[place] for tensor in before], [output[place] for output in outputs], f"vmap, entry {place}"
        )
    return "each entry right"


def _cuda_graph(subject: Subject) -> str:
    import torch

    _need_cuda(subject)
    tensors = subject.inputs()
    for _ in range(3):
        subject.call(tensors)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = subject.call(tensors)
    fresh = subject.inputs()
    for tensor, other in zip(tensors, fresh, strict=True):
        tensor.copy_(other)
    graph.replay()
    torch.cuda.synchronize()
    subject.require_right(fresh, outputs, "replayed on new content")
    return "captured, and right on new content when replayed"


def _second_stream(subject: Subject) -> str:
    import torch

    _need_cuda(subject)
    stream = torch.cuda.Stream()
    tensors = subject.inputs()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # work in front of it: a kernel launched on another stream would overtake, and read what is not there yet.
        # Zeros of their own dtype: a mask times 0 is whole numbers
        late = [torch.zeros_like(tensor) for tensor in tensors]
        torch.cuda._sleep(20_000_000)
        for target, source in zip(late, tensors, strict=True):
            target.copy_(source)
        outputs = subject.call(late)
    stream.synchronize()
    subject.require_right(tensors, outputs, "on a stream of the caller's")
    return "runs on the caller's stream, behind what was given to it before"


def _second_device(subject: Subject) -> str:
    import torch

    _need_cuda(subject)
    if torch.cuda.device_count() < 2:
        raise Elsewhere("needs two GPUs")
    before = subject.inputs()
    tensors = [tensor.to("cuda:1") for tensor in before]
    outputs = subject.call(tensors)
    if any(output.device != tensors[0].device for output in outputs):
        raise ClauseBroken("the output is not on the inputs' device")
    subject.require_right(before, outputs, "on cuda:1")
    return "right on cuda:1 while cuda:0 is current"


def _need_cuda(subject: Subject) -> None:
    if not subject.device.startswith("cuda"):
        raise Elsewhere("needs a GPU")


EVERY_DTYPE: dict[str, Callable[[Subject], str]] = {
    "values and memory": _values,
    "layouts": _layouts,
    "gradients": gradients,
}
ONCE: dict[str, Callable[[Subject], str]] = {
    "gradcheck": gradcheck,
    "opcheck": _opcheck,
    "torch.compile(fullgraph=True)": _compiled,
    "vmap": _vmap,
    "CUDA graph": _cuda_graph,
    "second stream": _second_stream,
    "second device": _second_device,
}
