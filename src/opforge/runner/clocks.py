"""The clocks. Each takes samples of a launch: seconds per call, a sample being a batch of calls between two readings.

Only `run` lies between the readings: inputs are packed, outputs allocated and code compiled before. The readings are
taken through names bound when this module was imported, so that a kernel which replaces `time.perf_counter` later
changes nothing here.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter as _perf_counter
from typing import Any


def host_samples(run: Callable[[], object], batch: int, count: int, clock: Callable[[], float] = _perf_counter) -> list[float]:
    """Host clock around `batch` calls, `count` times. For work that is done when the call returns (CPU kernels).

    >>> ticks = iter([0.0, 2.0, 10.0, 13.0])
    >>> host_samples(lambda: None, 1, 2, clock=ticks.__next__)
    [2.0, 3.0]
    """
    samples: list[float] = []
    calls = range(batch)
    for _ in range(count):
        start = clock()
        for _ in calls:
            run()
        samples.append((clock() - start) / batch)
    return samples


def event_samples(run: Callable[[], object], batch: int, count: int, flush: Callable[[], object] | None) -> list[float]:
    """Device events around `batch` calls. `flush` empties the cache before each sample, outside the events."""
    import torch

    pairs: list[tuple[Any, Any]] = []
    for _ in range(count):
        start, end = torch.Event(enable_timing=True), torch.Event(enable_timing=True)
        if flush is not None:
            flush()
        start.record()
        for _ in range(batch):
            run()
        end.record()
        pairs.append((start, end))
    torch.accelerator.synchronize()
    return [start.elapsed_time(end) / 1e3 / batch for start, end in pairs]


def graph_samples(run: Callable[[], object], batch: int, count: int, flush: Callable[[], object] | None) -> list[float]:
    """A CUDA graph of `batch` calls, replayed between events: launch cost of the host is not in it."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(batch):
            run()
    graph.replay()
    return [sample / batch for sample in event_samples(graph.replay, 1, count, flush)]


def cache_flusher(device: Any) -> Callable[[], object]:
    """A function that overwrites twice the device's last-level cache, so that the next kernel finds none of its inputs there."""
    import torch

    properties = torch.cuda.get_device_properties(device)
    buffer = torch.empty(2 * properties.L2_cache_size, dtype=torch.uint8, device=device)
    return buffer.zero_
