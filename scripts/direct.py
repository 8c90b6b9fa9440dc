"""Implementations called directly, in one process, beside each other: what scripts/as_called.py and scripts/choices.py
hold dispatch against.

Nothing of the timing room is used: inputs in turn from several copies that fit no cache together, calls captured in a
CUDA graph where that works (else one after the other between two events), all candidates interleaved, the median of the
turns.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Call = Callable[[Sequence[Any]], Any]
TURNS = 9
BATCH_S = 1.5e-3
"""Seconds of work between two events: a hundred times what an event costs."""
COPIES_BYTES = 192 << 20
"""What all copies of a call's tensors take together: several times the largest cache."""


def tensors_for(
    operator: Any, axes: Mapping[str, Any], dtype: str, scalars: Mapping[str, Any], device: str, layout: str
) -> list[Any]:
    """Random inputs of a call, None for optional ones; `layout` as a Workload says it, for all inputs or one word for
    each.
    """
    import torch

    from opforge.core.definition.shapes import full_shape
    from opforge.core.language.expr import evaluate
    from opforge.runner.worker.arena import strides_for

    words = layout.split()
    found = []
    for place, spec in enumerate(operator.inputs):
        if spec.optional:
            found.append(None)
            continue
        kind = getattr(torch, spec.dtype_for(dtype, scalars))
        shape = full_shape(spec.shape, axes)
        if spec.below is not None:
            found.append(
                torch.randint(0, max(1, int(evaluate(spec.below, {**axes, **scalars}))), shape, device=device).to(kind)
            )
            continue
        values = torch.randn(shape, device=device, dtype=torch.float32)
        values = (values.abs() + 0.1 if spec.domain != "any" else values).to(kind)
        strides, skip = strides_for(words[place] if len(words) > 1 else layout, shape)
        if strides != tuple(values.stride()) or skip:
            last = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + 1 + skip
            room = torch.empty(last, dtype=kind, device=device)
            strided = room.as_strided(shape, strides, skip)
            strided.copy_(values)
            values = strided
        found.append(values)
    return found


def prepared(
    operator: Any,
    implementation: Any,
    tensors: Sequence[Any],
    axes: Mapping[str, Any],
    dtype: str,
    scalars: Mapping[str, Any],
    config: Any = None,
    outputs: Sequence[Any] | None = None,
) -> Call | str:
    """The implementation as a function of tensors like these (None: not given), or why it does not take them.
    `outputs`: where results go, of one that allocates none itself; None: tensors of its own.
    """
    import torch

    from opforge.backends import Call as Wanted, Native, backend
    from opforge.core.definition.implementation import Rejected
    from opforge.core.definition.shapes import collapsed_shape, full_shape
    from opforge.runner.worker.launch import collapse, layout_of

    device = tensors[0].device.type
    mode = backend(implementation.backend).execution_mode(device)
    if not isinstance(mode, Native):
        return str(mode)
    there = {
        f"has_{spec.name}": tensor is not None
        for spec, tensor in zip(operator.inputs, tensors, strict=True)
        if spec.optional
    }
    asked, scalars = {name: scalars[name] for name in scalars if name not in there}, {**scalars, **there}
    answer = implementation.accepts(axes, dtype, scalars)
    if isinstance(answer, Rejected):
        return answer.reason
    outputs = outputs or [
        torch.empty(full_shape(spec.shape, axes), dtype=getattr(torch, spec.dtype_for(dtype, scalars)), device=device)
        for spec in operator.outputs
    ]
    flat_out = [
        output.view(collapsed_shape(spec.shape, axes)) for spec, output in zip(operator.outputs, outputs, strict=True)
    ]
    if implementation.backend not in ("torch", "compile", "library"):
        for spec, tensor in zip(operator.inputs, tensors, strict=True):
            if tensor is None:
                continue
            flat = collapse(tensor, spec.shape, axes)
            layout = "none" if isinstance(flat, Rejected) else layout_of(flat)
            if layout != "contiguous" and layout not in implementation.layouts:
                return f"{spec.name} is {layout}"
    kernel = backend(implementation.backend).prepare(
        implementation,
        Wanted(
            operator=operator,
            axes=axes,
            dtype=dtype,
            scalars=scalars,
            config=config or implementation.default,
            device=device,
        ),
    )
    if kernel.allocates:
        return lambda given: kernel.run(given, (), asked)

    def call(given: Sequence[Any]) -> Any:
        flat = [
            None if tensor is None else collapse(tensor, spec.shape, axes)
            for spec, tensor in zip(operator.inputs, given, strict=True)
        ]
        kernel.run(flat, flat_out, asked)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return call


def copies_of(tensors: Sequence[Any]) -> list[list[Any]]:
    """These tensors and copies of them, in the same layouts, enough to fit no cache together."""
    import torch

    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)
    count = max(2, min(48, math.ceil(COPIES_BYTES / max(1, size))))
    found = [list(tensors)]
    for _ in range(count - 1):
        found.append(
            [
                tensor
                if tensor is None
                else torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(
                    tensor
                )
                for tensor in tensors
            ]
        )
    return found


def kernel_errors() -> tuple[type[Exception], ...]:
    """What a kernel that cannot be built or run here raises; anything else is a defect of the script. RuntimeError is
    also torch's, the CUDA driver's and TVM's; Triton's errors have a base of their own.
    """
    from opforge.core.language.errors import OpforgeError

    own = (OpforgeError, RuntimeError, ValueError, TypeError, AssertionError, OSError, subprocess.SubprocessError)
    try:
        from triton.errors import TritonError
    except ImportError:
        return own
    return (*own, TritonError)


def reason_of(error: Exception) -> str:
    """An error in one line, for a table."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), ''):.80}"


class Times(NamedTuple):
    """Median seconds of one call by name, and why some were called where a CUDA graph was asked for."""

    seconds: dict[str, float]
    called: dict[str, str]


def interleaved(
    calls: Mapping[str, Call], copies: Sequence[Sequence[Any]], device: str, *, graphs: bool = True, turns: int = TURNS
) -> Times:
    """Median seconds of one call of each, all interleaved."""
    import torch

    samples: dict[str, list[float]] = {name: [] for name in calls}
    if device == "cpu":
        batches = {}
        for name, call in calls.items():
            call(copies[0])
            began = time.perf_counter()
            call(copies[-1])
            batches[name] = max(1, min(200, round(BATCH_S * 4 / max(1e-7, time.perf_counter() - began))))
        for _ in range(turns):
            for name, call in calls.items():
                began = time.perf_counter()
                for step in range(batches[name]):
                    call(copies[step % len(copies)])
                samples[name].append((time.perf_counter() - began) / batches[name])
        return Times({name: statistics.median(found) for name, found in samples.items()}, {})

    def timed(run: Callable[[], Any]) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    ways: dict[str, tuple[Callable[[], Any], int]] = {}
    called: dict[str, str] = {}
    for name, call in calls.items():
        for _ in range(2):
            call(copies[0])
        torch.cuda.synchronize()
        one = min(timed(lambda call=call: call(copies[-1])) for _ in range(3))
        batch = max(1, min(256, math.ceil(BATCH_S / max(one, 4e-6))))
        if batch > 1:
            batch = max(batch, min(len(copies), 16))

        def run(call=call, batch=batch):
            for step in range(batch):
                call(copies[step % len(copies)])

        if graphs:
            try:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    run()
                graph.replay()
                torch.cuda.synchronize()
                run = graph.replay
            except kernel_errors() as error:
                called[name] = reason_of(error)
                torch.cuda.synchronize()
        ways[name] = run, batch
    for _ in range(turns):
        for name, (run, batch) in ways.items():
            samples[name].append(timed(run) / batch)
    return Times({name: statistics.median(found) for name, found in samples.items()}, called)


def right(got: Any, expected: Any, dtype: str) -> bool:
    """Whether two results are near enough to be the same computation: a guard against timing nonsense, no
    verification.
    """
    import torch

    pairs = zip(
        got if isinstance(got, tuple) else (got,), expected if isinstance(expected, tuple) else (expected,), strict=True
    )
    room = 2e-3 if dtype == "float32" else 4e-2
    return all(
        bool(
            ((a.float() - b.float()).abs() <= room * (b.float().abs().mean() + b.float().abs()) + 1e-6).float().mean()
            > 0.999
        )
        for a, b in pairs
        if torch.is_tensor(a)
    )
