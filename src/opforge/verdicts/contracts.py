"""What a PyTorch function promises besides right values: gradients, schemas, compilation, transforms, streams, clean hands.

Checked on the function itself, in the process that calls it, as its users will call it. Each clause stands: "held",
"broken", "not here" (this machine lacks what it needs) or "open" (the operator does not declare it).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from opforge.core.dtypes import DTYPES
from opforge.core.gradient import wire
from opforge.core.operator import Case, Operator
from opforge.core.shapes import full_shape
from opforge.runner import allocate, fill, fresh_seed
from opforge.verdicts.compare import compare
from opforge.verdicts.oracle import Expectation, consult, half_ulp, reduction_length
from opforge.verdicts.suite import elements

GRADIENT_FACTOR = 16.0


@dataclass(frozen=True, kw_only=True)
class Clause:
    """One promise, and how it stands."""

    name: str
    standing: str
    detail: str


class _Broken(Exception):
    """A promise that does not hold; the message says how."""


class _Elsewhere(Exception):
    """This machine cannot tell; the message says what it lacks."""


class _Open(Exception):
    """The operator does not promise this."""


def check_function(
    operator: Operator, function: Callable[..., Any], custom: Any, *, dtypes: Sequence[str], device: str, compiler: str = "inductor", gradient: Operator | None = None
) -> tuple[Clause, ...]:
    """Every clause for one operator.

    function   called as users call it: tensors in the operator's order, then scalars by name
    custom     the registered custom operator behind it (torch.ops.NAMESPACE.NAME.default), for opcheck
    compiler   the backend torch.compile is given
    gradient   the operator that the definition names for its gradients: finite differences are asked about its reference then
    """
    subjects = [_Subject(operator=operator, function=function, custom=custom, dtype=dtype, device=device, compiler=compiler, gradient=gradient) for dtype in dtypes]
    found = []
    for subject in subjects:
        found += [_settled(f"{name} ({subject.dtype})", clause, subject) for name, clause in EVERY_DTYPE.items()]
    found += [_settled(name, clause, subjects[0]) for name, clause in ONCE.items()]
    return tuple(found)


@dataclass(kw_only=True)
class _Subject:
    operator: Operator
    function: Callable[..., Any]
    custom: Any
    dtype: str
    device: str
    compiler: str
    gradient: Operator | None = None

    @property
    def case(self) -> Case:
        """The smallest plain case with at least 16 elements and no axis of one, or the nearest to that."""
        plain = [case for case in self.operator.cases if case.dtype in (None, self.dtype) and case.distribution == "normal" and elements(self.operator, case)]

        def rank(case: Case) -> tuple[int, bool, int]:
            ones = sum(extent < 2 for spec in self.operator.inputs for extent in full_shape(spec.shape, case.axes))
            return ones, elements(self.operator, case) < 16, elements(self.operator, case)

        ranked = sorted(plain or self.operator.cases, key=rank)
        return dataclasses.replace(ranked[0], layout="contiguous", seed=fresh_seed())

    @property
    def scalars(self) -> dict[str, Any]:
        return self.operator.scalar_values(self.case.scalars)

    def inputs(self, case: Case | None = None) -> list[Any]:
        """Fresh tensors on the device."""
        case = case or self.case
        arena = allocate(self.operator, case, self.dtype)
        try:
            fill(arena, self.operator, case, fresh_seed())
            tensors = arena.tensors("input")
            return [tensors[spec.name].clone().to(self.device) for spec in self.operator.inputs]
        finally:
            arena.close()

    def call(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        returned = self.function(*tensors, **self.case.scalars)
        return returned if isinstance(returned, tuple) else (returned,)

    def require_right(self, tensors: Sequence[Any], outputs: Sequence[Any], what: str) -> None:
        case = self.case
        axes = self.operator.bind({spec.name: tuple(tensor.shape) for spec, tensor in zip(self.operator.inputs, tensors, strict=True)}, self.operator.scalar_values(case.scalars))
        named = {spec.name: tensor.detach().cpu() for spec, tensor in zip(self.operator.inputs, tensors, strict=True)}
        truth = consult(self.operator, dataclasses.replace(case, axes=axes), self.dtype, named)
        for expectation, output in zip(truth.expectations, outputs, strict=True):
            found = compare(output.detach().cpu(), expectation)
            if not found.agrees:
                m = found.metrics
                raise _Broken(f"{what}: {m.output}{list(m.worst_index)} is {m.worst_actual:.6g}, expected {m.worst_expected:.6g} within {m.worst_bound:.2g}")

    def floating(self, tensors: Sequence[Any]) -> list[Any]:
        wanted = self.operator.differentiable
        return [tensor for spec, tensor in zip(self.operator.inputs, tensors, strict=True) if tensor.is_floating_point() and (wanted is None or spec.name in wanted)]


def _settled(name: str, clause: Callable[[_Subject], str], subject: _Subject) -> Clause:
    try:
        return Clause(name=name, standing="held", detail=clause(subject))
    except _Elsewhere as reason:
        return Clause(name=name, standing="not here", detail=str(reason))
    except _Open as reason:
        return Clause(name=name, standing="open", detail=str(reason))
    except _Broken as reason:
        return Clause(name=name, standing="broken", detail=str(reason))
    except Exception as error:  # noqa: BLE001 - the function under test may raise anything, and whatever it is, the promise is broken
        return Clause(name=name, standing="broken", detail=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")


def _values(subject: _Subject) -> str:
    import torch

    tensors = subject.inputs()
    before = [tensor.clone() for tensor in tensors]
    outputs = subject.call(tensors)
    subject.require_right(before, outputs, "eager")
    for spec, tensor, kept in zip(subject.operator.inputs, tensors, before, strict=True):
        if not torch.equal(tensor, kept):
            raise _Broken(f"input {spec.name} was modified")
    own = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    memory = [output.untyped_storage().data_ptr() for output in outputs]
    if own & set(memory) or len(set(memory)) < len(memory):
        raise _Broken("an output shares memory with an input or another output")
    again = subject.call(tensors)
    if set(memory) & {output.untyped_storage().data_ptr() for output in again}:
        raise _Broken("two calls returned the same memory")
    return "right, inputs unmodified, outputs in memory of their own"


def _layouts(subject: _Subject) -> str:
    tensors = subject.inputs()
    strided = [_not_contiguous(tensor) for tensor in tensors]
    subject.require_right(tensors, subject.call(strided), "inputs that are not contiguous")
    return "right for inputs that are not contiguous"


def _not_contiguous(tensor: Any) -> Any:
    """The same values with other strides; a scalar has none."""
    if tensor.ndim >= 2:
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    return tensor.repeat_interleave(2)[::2] if tensor.ndim else tensor


def _gradients(subject: _Subject) -> str:
    import torch

    operator, dtype = subject.operator, subject.dtype
    tensors = subject.inputs()
    leaves = subject.floating(tensors)
    if not leaves:
        raise _Open("no input is declared differentiable")
    for leaf in leaves:
        leaf.requires_grad_(True)
    outputs = subject.call(tensors)
    seeds = [torch.randn(output.shape, dtype=torch.float64, device=output.device).to(output.dtype) for output in outputs]
    got = torch.autograd.grad(outputs, leaves, seeds, allow_unused=True)
    wide = [tensor.detach().cpu().double() if tensor.is_floating_point() else tensor.cpu() for tensor in tensors]
    wide_leaves = subject.floating(wide)
    for leaf in wide_leaves:
        leaf.requires_grad_(True)
    returned = operator.reference(*wide, **subject.scalars)
    references = returned if isinstance(returned, tuple) else (returned,)
    wanted = torch.autograd.grad(references, wide_leaves, [seed.cpu().double() for seed in seeds], allow_unused=True)
    root = reduction_length(operator, subject.case, dtype) ** 0.5
    worst = 0.0
    stored_outputs = _of_stored_outputs(subject, wide, references, seeds) or [0.0] * len(leaves)
    for number, (mine, true, kept) in enumerate(zip(got, wanted, stored_outputs, strict=True)):
        if (mine is None) != (true is None):
            raise _Broken(f"gradient {number} is {'missing' if mine is None else 'there'}, the reference's is {'missing' if true is None else 'there'}")
        if mine is None or true is None:
            continue
        stored = str(mine.dtype).removeprefix("torch.")
        # the sums of a backward run over other axes than those of the forward: the largest gradient stands for their magnitude
        bound = GRADIENT_FACTOR * DTYPES["float32"].epsilon * root * max(1.0, float(true.abs().max())) + half_ulp(true, stored) + kept
        found = compare(mine.detach().cpu(), Expectation(output=f"gradient {number}", dtype=stored, expected=true, bound=bound))
        if not found.agrees:
            m = found.metrics
            raise _Broken(f"gradient {number} at {list(m.worst_index)} is {m.worst_actual:.6g}, expected {m.worst_expected:.6g} within {m.worst_bound:.2g}")
        worst = max(worst, found.metrics.worst_ratio)
    return f"within {worst:.0%} of the bound of the reference's gradient in float64"


def _of_stored_outputs(subject: _Subject, wide: Sequence[Any], references: Sequence[Any], seeds: Sequence[Any]) -> list[Any] | None:
    """How far each gradient moves when the outputs that it is computed from have been rounded to their dtype, twice over; None where
    it is computed from inputs alone. Asked of the gradient operator's reference on both sides, so that a wrong formula earns nothing."""
    import torch

    if subject.gradient is None:
        return None
    operator, gradient = subject.operator, subject.gradient
    wiring = wire(operator, gradient)
    if not wiring.keeps_outputs:
        return None

    def results(outputs: Sequence[Any]) -> tuple[Any, ...]:
        sources = {"input": wide, "output": outputs, "incoming": [seed.cpu().double() for seed in seeds]}
        with torch.no_grad():
            returned = gradient.reference(*(sources[kind][place] for kind, place in wiring.takes), **{name: subject.scalars[name] for name in wiring.scalars})
        return returned if isinstance(returned, tuple) else (returned,)

    exact = [reference.detach() for reference in references]
    rounded = [value.to(getattr(torch, spec.dtype_for(subject.dtype, subject.scalars))).double() for spec, value in zip(operator.outputs, exact, strict=True)]
    moved = [2 * (a - b).abs() for a, b in zip(results(exact), results(rounded), strict=True)]
    leaves = [id(leaf) for leaf in subject.floating(wide)]
    return [0.0 if place is None else moved[place] for place, tensor in zip(wiring.gives, wide, strict=True) if id(tensor) in leaves]


def _gradcheck(subject: _Subject) -> str:
    import torch

    small = min((case for case in subject.operator.cases if elements(subject.operator, case) > 1), key=lambda case: elements(subject.operator, case))
    tensors = [
        tensor.cpu().double() if tensor.is_floating_point() else tensor.cpu()
        for tensor in subject.inputs(dataclasses.replace(small, distribution="normal", layout="contiguous", dtype=None))
    ]
    leaves = subject.floating(tensors)
    if not leaves:
        raise _Open("no input is declared differentiable")
    for leaf in leaves:
        leaf.requires_grad_(True)
    scalars = subject.operator.scalar_values(small.scalars)
    if "float64" in subject.operator.dtypes:
        through, words = subject.function, ""
    elif subject.gradient is not None:
        through, words = _joined(subject.operator, subject.gradient), f", through the reference of {subject.gradient.name}"
    else:
        through, words = subject.operator.reference, ", through the reference that the backward differentiates"
    torch.autograd.gradcheck(lambda *given: through(*given, **scalars), tensors)
    return f"finite differences in float64 agree{words}"


def _joined(operator: Operator, gradient: Operator) -> Callable[..., Any]:
    """The operator's reference, with the reference of its gradient operator for a backward pass."""
    import torch

    wiring = wire(operator, gradient)

    def through(*tensors: Any, **scalars: Any) -> Any:
        def forward(ctx: Any, *given: Any) -> Any:
            returned = operator.reference(*given, **scalars)
            ctx.kept = (given, returned if isinstance(returned, tuple) else (returned,))
            return returned

        def backward(ctx: Any, *incoming: Any) -> Any:
            inputs, outputs = ctx.kept
            sources = {"input": inputs, "output": outputs, "incoming": incoming}
            returned = gradient.reference(*(sources[kind][place] for kind, place in wiring.takes), **{name: scalars[name] for name in wiring.scalars})
            results = returned if isinstance(returned, tuple) else (returned,)
            return tuple(None if place is None else results[place] for place in wiring.gives)

        joined: Any = type("Joined", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})
        return joined.apply(*tensors)

    return through


def _opcheck(subject: _Subject) -> str:
    import torch

    tensors = subject.inputs()
    for leaf in subject.floating(tensors):
        leaf.requires_grad_(True)
    results = torch.library.opcheck(subject.custom, (*tensors, *subject.scalars.values()))
    return f"torch.library.opcheck: {', '.join(name.removeprefix('test_') for name in results)}"


def _compiled(subject: _Subject) -> str:
    import torch

    tensors = subject.inputs()
    scalars = dict(subject.case.scalars)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *given: subject.function(*given, **scalars), fullgraph=True, backend=subject.compiler)
    returned = compiled(*tensors)
    outputs = returned if isinstance(returned, tuple) else (returned,)
    subject.require_right(tensors, outputs, "compiled")
    leaves = subject.floating(tensors)
    if leaves:
        for leaf in leaves:
            leaf.requires_grad_(True)
        returned = compiled(*tensors)
        first = returned[0] if isinstance(returned, tuple) else returned
        # not a sum's: that of rows that sum to one is zero, whatever the backward does
        seed = torch.linspace(0.5, 1.5, first.numel(), dtype=torch.float32, device=first.device).reshape(first.shape).to(first.dtype)
        mine = torch.autograd.grad(first, leaves, seed, allow_unused=True)
        eager = torch.autograd.grad(subject.call(tensors)[0], leaves, seed, allow_unused=True)
        for a, b in zip(mine, eager, strict=True):
            if (a is None) != (b is None):
                raise _Broken("a gradient is there in only one of compiled and eager")
            # of the largest: gradients of probabilities are all small
            if a is not None and not float((a.float() - b.float()).abs().max()) <= 1e-2 * float(b.float().abs().max()):
                raise _Broken("compiled and eager gradients differ")
    return f"one graph through {subject.compiler}, forward and backward"


def _vmap(subject: _Subject) -> str:
    import torch

    tensors = subject.inputs()
    batched = [torch.stack([tensor, tensor.flip(0) if tensor.ndim else tensor]) for tensor in tensors]
    try:
        returned = torch.vmap(lambda *given: subject.function(*given, **subject.case.scalars))(*batched)
    except (RuntimeError, NotImplementedError) as error:
        # without a rule torch.vmap fails in one of several ways, none of which computes anything
        raise _Open(f"no vmap rule is declared; torch.vmap fails with {type(error).__name__}") from error
    outputs = returned if isinstance(returned, tuple) else (returned,)
    for place in range(2):
        subject.require_right([tensor[place] for tensor in batched], [output[place] for output in outputs], f"vmap, entry {place}")
    return "each entry right"


def _cuda_graph(subject: _Subject) -> str:
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


def _second_stream(subject: _Subject) -> str:
    import torch

    _need_cuda(subject)
    stream = torch.cuda.Stream()
    tensors = subject.inputs()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # work in front of it: a kernel launched on another stream would overtake, and read what is not there yet
        late = [tensor * 0 for tensor in tensors]
        torch.cuda._sleep(20_000_000)
        for target, source in zip(late, tensors, strict=True):
            target.copy_(source)
        outputs = subject.call(late)
    stream.synchronize()
    subject.require_right(tensors, outputs, "on a stream of the caller's")
    return "runs on the caller's stream, behind what was given to it before"


def _second_device(subject: _Subject) -> str:
    import torch

    _need_cuda(subject)
    if torch.cuda.device_count() < 2:
        raise _Elsewhere("needs two GPUs")
    tensors = [tensor.to("cuda:1") for tensor in subject.inputs()]
    outputs = subject.call(tensors)
    if any(output.device != tensors[0].device for output in outputs):
        raise _Broken("the output is not on the inputs' device")
    subject.require_right(tensors, outputs, "on cuda:1")
    return "right on cuda:1 while cuda:0 is current"


def _need_cuda(subject: _Subject) -> None:
    if not subject.device.startswith("cuda"):
        raise _Elsewhere("needs a GPU")


EVERY_DTYPE: dict[str, Callable[[_Subject], str]] = {"values and memory": _values, "layouts": _layouts, "gradients": _gradients}
ONCE: dict[str, Callable[[_Subject], str]] = {
    "gradcheck": _gradcheck,
    "opcheck": _opcheck,
    "torch.compile(fullgraph=True)": _compiled,
    "vmap": _vmap,
    "CUDA graph": _cuda_graph,
    "second stream": _second_stream,
    "second device": _second_device,
}
