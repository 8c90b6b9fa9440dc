"""Times for scripts/attention_matrix.py: calls are made ready by several processes at once, and timed one at a time.

What costs time is not the call: a kernel that Triton has compiled is loaded in some 50 ms, inputs and a CUDA graph take
as long again. So each process makes a group of cells ready while others do the same, and then has the device for
itself: no process makes anything ready while one times. A time is the median of five batches of a millisecond of calls,
replayed from a CUDA graph, inputs in the cache; PyTorch's are called one by one, three times.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import fcntl
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from attention_matrix import PAGES, PASS, TIMED, Answer, Cell, case_of, keep, part_of

TURNS, BATCH_S, MOST_CALLS = 5, 1e-3, 32
"""A time is the median of so many batches, each of so many seconds of calls, or of so many calls at the most."""


class Device:
    """Who may use the device: many processes that make calls ready, or one that times.

    Two locks: who waits to time holds the first, so that nobody who begins to make ready passes it. Without a file
    there is one process alone.
    """

    def __init__(self, path: Path | None) -> None:
        self.files = [] if path is None else [path.with_name(f"{path.name}.{name}").open("w") for name in "ab"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.files:
            file.close()

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Beside others that make calls ready."""
        if self.files:
            fcntl.flock(self.files[0], fcntl.LOCK_EX)
            fcntl.flock(self.files[1], fcntl.LOCK_SH)
            fcntl.flock(self.files[0], fcntl.LOCK_UN)
        try:
            yield
        finally:
            if self.files:
                fcntl.flock(self.files[1], fcntl.LOCK_UN)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else makes anything ready or times."""
        for file in self.files:
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            for file in reversed(self.files):
                fcntl.flock(file, fcntl.LOCK_UN)


@dataclass(frozen=True)
class Ready:
    """A call that only has to be run: a batch of `calls` calls. `held` is the memory that a graph reads and writes."""

    answer: Answer
    run: Callable[[], Any]
    calls: int
    held: Any


def inputs_of(operator: Any, case: Any, dtype: str, device: str) -> list[Any]:
    """Tensors of a call that is timed, made where it runs; None for what is not given."""
    import torch

    from opforge.core.shapes import full_shape

    keys = case.axes.get("keys", case.axes.get("total_k", PAGES * case.axes.get("page", 1)))
    made: list[Any] = []
    for spec in operator.inputs:
        shape = full_shape(spec.shape, case.axes)
        if spec.optional and not case.scalars[f"has_{spec.name}"]:
            made.append(None)
        elif spec.offsets is not None:
            made.append(torch.arange(shape[0], device=device) * case.axes[spec.offsets] // max(1, shape[0] - 1))
            made[-1] = made[-1].int()
        elif spec.name == "block_table":
            made.append(torch.arange(case.axes["pages"], device=device).int().reshape(shape))
        elif spec.name in ("key_lengths", "lengths"):
            made.append(torch.full(shape, keys, dtype=torch.int32, device=device))
        elif spec.name == "mask":
            made.append(torch.rand(shape, device=device) < 0.9)
        else:
            kind = getattr(torch, spec.dtype_for(dtype, case.scalars))
            # weights of a backward pass sum to about 1
            made.append((torch.randn(shape, device=device) + (math.log(keys) if spec.name == "lse" else 0)).to(kind))
    return made


def compiled_before(homes: Sequence[str], item: Any) -> None:
    """Let Triton find what the verification has compiled: it keeps a folder for each implementation."""
    from opforge.backends import cache
    from opforge.backends.shared_code import source_sha256

    if item.backend == "triton":
        folder = cache.jit_folder(homes, item.backend, source_sha256(item.source))
        os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")


def batched(call: Callable[[Any], Any], tensors: Sequence[Any]) -> tuple[Callable[[], Any], int]:
    """A CUDA graph of some calls, and how many they are. PyTorch's own way to make one gives memory back before each,
    which costs more than all the rest.
    """
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    call(tensors)
    end.record()
    end.synchronize()
    count = max(4, min(MOST_CALLS, math.ceil(BATCH_S / max(begin.elapsed_time(end) / 1e3, 8e-6))))
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for _ in range(count):
                call(tensors)
        finally:
            graph.capture_end()
    return graph.replay, count


def made_ready(
    operator: Any, items: Mapping[str, Any], homes: Sequence[str], asked: Sequence[Answer], device: str
) -> list[Ready | Answer]:
    """The calls that the answers about one cell speak of, on the same inputs; an answer without a time where that does
    not work or the result is not near the definition's.
    """
    import torch
    from direct import kernel_errors, prepared, reason_of, right

    case, dtype = case_of(operator, asked[0].cell, TIMED), asked[0].dtype
    scalars = operator.scalar_values(case.scalars)
    cost = operator.cost(case.axes, dtype, case.scalars)
    torch.manual_seed(0)
    tensors = inputs_of(operator, case, dtype, device)
    expected: Any = None
    result: list[Ready | Answer] = []
    try:
        definition = prepared(operator, items["torch_definition"], tensors, case.axes, dtype, scalars)
        expected = definition if isinstance(definition, str) else definition(tensors)
    except kernel_errors() as error:
        expected = reason_of(error)
    for plain in asked:
        answer, item = replace(plain, flops=float(cost.flops), bytes=float(cost.bytes)), items[plain.implementation]
        why = expected if isinstance(expected, str) else ""
        try:
            compiled_before(homes, item)
            call = prepared(operator, item, tensors, case.axes, dtype, scalars)
            if isinstance(call, str):
                why = call
            elif not why and not right(call(tensors), expected, dtype):
                why = "its result is not near the definition's"
            if not why and not isinstance(call, str):
                graph = device != "cpu" and item.backend != "torch"
                run, calls = batched(call, tensors) if graph else (lambda call=call: call(tensors), 1)
                result.append(Ready(answer, run, calls, (call, tensors)))
                continue
        except kernel_errors() as error:
            why = reason_of(error)
        print(f"{case.name} {answer.cell.direction}: {item.name} is not timed: {why}", flush=True)
        result.append(answer)
    return result


def with_time(ready: Ready, device: str) -> Answer:
    """The answer with its time, or without one where the call fails now."""
    from direct import kernel_errors, reason_of

    try:
        return replace(ready.answer, seconds=seconds_of(ready, device))
    except kernel_errors() as error:
        print(f"{ready.answer.cell}: {ready.answer.implementation} is not timed: {reason_of(error)}", flush=True)
        return ready.answer


def seconds_of(ready: Ready, device: str) -> float:
    """Median seconds of one call."""
    import torch

    samples = []
    ready.run()
    for _ in range(TURNS if ready.calls > 1 else 3):
        if device == "cpu":
            began = time.perf_counter()
            ready.run()
            samples.append(time.perf_counter() - began)
            continue
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        ready.run()
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) / 1e3 / ready.calls)
    return statistics.median(samples)


def preferred(
    found: Sequence[Answer], items: Callable[[str], Mapping[str, Any]]
) -> tuple[dict[Cell, list[Answer]], list[Answer]]:
    """Of each cell and backend the Pass of the implementation that its operator prefers, by cell; and all the rest."""
    best: dict[tuple[Cell, str], Answer] = {}
    rest = []
    for answer in found:
        if answer.verdict != PASS:
            rest.append(answer)
            continue
        order, key = list(items(answer.cell.operator)), (answer.cell, answer.backend)
        before = best.get(key)
        if before is not None and order.index(before.implementation) <= order.index(answer.implementation):
            rest.append(answer)
            continue
        rest += [] if before is None else [before]
        best[key] = answer
    cells: dict[Cell, list[Answer]] = collections.defaultdict(list)
    for (cell, _), answer in best.items():
        cells[cell].append(answer)
    return cells, rest


def timed(options: argparse.Namespace, found: Sequence[Answer]) -> list[Answer]:
    """The answers about this part's cells, one Pass of each cell and backend with seconds of a call."""
    import torch

    from opforge.registry import load

    registry, began = load([]), time.monotonic()
    homes = tuple(str(home.path) for home in registry.homes)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    known: dict[str, dict[str, Any]] = {}

    def items(name: str) -> dict[str, Any]:
        if name not in known:
            known[name] = {item.name: item for item in registry.implementations(name)}
        return known[name]

    mine = set(part_of(list(dict.fromkeys(answer.cell for answer in found)), options.part))
    own = [answer for answer in found if answer.cell in mine and answer.backend in ("", *options.backends)]
    cells, result = preferred(own, items)
    queue = list(cells)
    with Device(options.lock) as held:
        for first in range(0, len(queue), options.together):
            group = queue[first : first + options.together]
            if (time.monotonic() - began) / 60 > options.minutes:
                result += [answer for cell in group for answer in cells[cell]]
                continue
            with held.shared():
                ready = [
                    one
                    for cell in group
                    for one in made_ready(
                        registry.operator(cell.operator), items(cell.operator), homes, cells[cell], device
                    )
                ]
                if device != "cpu":
                    torch.cuda.synchronize()
            with held.alone():
                result += [with_time(one, device) if isinstance(one, Ready) else one for one in ready]
            del ready
            keep(options.json, result)
            print(f"[{time.monotonic() - began:4.0f} s] timed: {first + len(group)} of {len(queue)} cells", flush=True)
    return result
