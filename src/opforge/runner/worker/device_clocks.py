"""Clocks of a GPU: events, replay of a CUDA graph, and the kernel times that CUPTI sees; and the flush that makes a
cache cold.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from opforge.runner.worker.clocks import RunFunction

APART_CYCLES = 20_000_000
"""10 ms of an H200: longer than what lies between a captured call and its replay on new content, so that a kernel which
looks at
the device's clock takes one of the two for a call by itself."""
FLUSH_FACTOR = 2
FLUSH_PASSES = 2
SECTOR_BYTES = 32
PROBE_REPEATS = 25
WAITS = (0, 200_000, 400_000, 800_000, 1_600_000, 3_200_000)
"""Cycles that the device waits for the host before a sample, and before it is taken again where the host was late: up
to 1.6 ms of an H200."""
NO_GRAPH = "no CUDA graph could be captured"
"""How the reason begins of who cannot be timed by a graph, and may be by events."""


class ClockUnfit(Exception):
    """This clock cannot time this launch; the message says why."""


class UnlikeCalls(Exception):
    """Calls in one graph do not all launch as much: the message says by how much they differ."""


def event_samples(
    run: RunFunction, batch: int, count: int, flush: RunFunction | None, ahead: bool = False
) -> list[float]:
    """Device events around `batch` calls, seconds per call. `flush` empties the cache before each sample, outside the
    events.

    ahead   a sample that the device began before the host had given it all is taken again, after a longer and longer
            wait of the device: what the host was late would be in it
    """
    import torch

    pairs: list[tuple[Any, Any]] = []
    for _ in range(count):
        start, end = torch.Event(enable_timing=True), torch.Event(enable_timing=True)
        for cycles in WAITS if ahead else (0,):
            if flush is not None:
                flush()
            if cycles:
                torch.cuda._sleep(cycles)
            start.record()
            for _ in range(batch):
                run()
            end.record()
            if not ahead or not start.query():
                break
        pairs.append((start, end))
    torch.accelerator.synchronize()
    return [start.elapsed_time(end) / 1e3 / batch for start, end in pairs]


def captured(run: RunFunction, batch: int, alike: bool = True) -> RunFunction:
    """The replay of a CUDA graph of `batch` calls, replayed once already.

    alike   each call must put as many nodes into the graph as the others: who leaves out a call puts none
    Raises ClockUnfit when the calls cannot be captured (they allocate through the driver, or wait for the device), and
    UnlikeCalls where they differ.
    """
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(batch):
            run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    counted: list[int | None] = []
    try:
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(batch):
                run()
                counted.append(nodes_captured(stream.cuda_stream) if alike and batch > 1 else None)
    except RuntimeError as error:
        raise ClockUnfit(f"{NO_GRAPH}: {str(error).splitlines()[0][:160]}") from error
    known = [0, *(count for count in counted if count is not None)]
    each = {after - before for before, after in itertools.pairwise(known)}
    if len(each) > 1:
        raise UnlikeCalls(
            f"of the calls that are captured in one CUDA graph some launch {min(each)} and others {max(each)} pieces "
            "of work: some leave out what others do"
        )
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay  # type: ignore[no-any-return]


def nodes_captured(stream: int) -> int | None:
    """How many nodes the graph has that is being captured on a stream; None where the driver does not say."""
    driver = _driver()
    if driver is None:
        return None
    status, number, graph, count = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p(), ctypes.c_size_t()
    # (stream, status, id, graph, dependencies, their number)
    found = driver.cuStreamGetCaptureInfo_v2(
        ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), ctypes.byref(graph), None, None
    )
    if found or not graph or driver.cuGraphGetNodes(graph, None, ctypes.byref(count)):
        return None
    return count.value


@lru_cache(maxsize=1)
def _driver() -> Any:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        _ = driver.cuStreamGetCaptureInfo_v2, driver.cuGraphGetNodes
    except (OSError, AttributeError):
        return None
    return driver


def graph_samples(replay: RunFunction, batch: int, count: int, flush: RunFunction | None) -> list[float]:
    """A `captured` graph of `batch` calls between events, seconds per call: launch cost of the host is not in it, also
    where a host that was just doing something else is late (with `flush`, which gives the device something to do).
    """
    return [sample / batch for sample in event_samples(replay, 1, count, flush, ahead=flush is not None)]


def cupti_samples(run: RunFunction, batch: int, count: int, flush: RunFunction | None) -> list[float]:
    """The time in which the device was busy with `batch` calls, as CUPTI saw it through torch's profiler, seconds per
    call.

    Gaps between kernels are not in it, and neither is `flush`. Raises ClockUnfit where the profiler sees no device
    work, or where calls differ in how much they launch, so that its records cannot be told apart.
    """
    flushes = 0 if flush is None else len(busy(flush, 1))
    intervals = busy(run, batch, flush, count)
    each, rest = divmod(len(intervals), count)
    if not intervals or rest or each <= flushes:
        raise ClockUnfit(
            f"CUPTI saw {len(intervals)} pieces of device work in {count} samples; they cannot be told apart"
        )
    return [
        union(intervals[position * each + flushes : (position + 1) * each]) / 1e9 / batch for position in range(count)
    ]


def union(intervals: Sequence[tuple[int, int]]) -> int:
    """Length of the union of (start, duration) intervals: work that overlaps is counted once.

    >>> union([(0, 10), (5, 10), (30, 5)])
    20
    """
    total, reached = 0, -1
    for start, duration in sorted(intervals):
        end = start + duration
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total


def busy(run: RunFunction, batch: int, flush: RunFunction | None = None, count: int = 1) -> list[tuple[int, int]]:
    """(start, duration) in ns of every kernel, copy and fill on the device, on whatever stream, in order of start."""
    return sorted((start, duration) for start, duration, _ in device_work(run, batch, flush, count))


TRACED = ("cuda",)
"""Device types whose work the profiler sees. Of others' clocks there are events (timing.timers), and no names."""


def begin_trace(device: str) -> None:
    """Have a first trace behind this process: it takes seconds. Nothing where a device has none."""
    if device in TRACED:
        device_work(lambda: None)


def device_work(
    run: RunFunction, batch: int = 1, flush: RunFunction | None = None, count: int = 1
) -> list[tuple[int, int, str]]:
    """(start, duration, name), in ns, of every kernel, copy and fill on the device, on whatever stream and by whatever
    thread.
    """
    import torch

    # torch.profiler's own imports torch._inductor when it begins: three seconds in each process that is new
    from torch.autograd.profiler import profile

    device = torch.accelerator.current_accelerator()
    assert device is not None  # the launch is bound to one
    torch.accelerator.synchronize()
    with profile(use_cpu=False, use_device=device.type, use_kineto=True, acc_events=True) as profiler:
        for _ in range(count):
            if flush is not None:
                flush()
            for _ in range(batch):
                run()
        torch.accelerator.synchronize()
    events = profiler.kineto_results.events() if profiler.kineto_results is not None else []
    return sorted(
        (event.start_ns(), event.duration_ns(), event.name())
        for event in events
        if event.device_type() != torch.autograd.DeviceType.CPU and event.duration_ns() > 0
    )


def row(
    run: RunFunction, write: Callable[[int], object], contents: bytes, captures: bool, flush: RunFunction | None
) -> tuple[float, float]:
    """Seconds per call of calls in a row, each after `write` of its content, and of the writing alone.

    captures   all of it in one CUDA graph, which is replayed once
    flush      empties the cache between the writing and the call; then each call is timed by itself, the writing not
               at all
    Raises ClockUnfit where no graph can be captured.
    """
    import torch

    if flush is not None:
        pairs: list[tuple[Any, Any]] = []
        for content in contents:
            write(content)
            flush()
            start, end = torch.Event(enable_timing=True), torch.Event(enable_timing=True)
            start.record()
            run()
            end.record()
            pairs.append((start, end))
        torch.accelerator.synchronize()
        return sum(start.elapsed_time(end) for start, end in pairs) / 1e3 / len(pairs), 0.0

    def both(at: int) -> None:
        write(contents[at % len(contents)])
        run()

    def in_turn(call: Callable[[int], object]) -> RunFunction:
        turn = iter(range(1 << 30))
        return lambda: call(next(turn))

    def timed(call: Callable[[int], object]) -> float:
        one = in_turn(call)
        if not captures:
            return event_samples(one, len(contents), 1, None)[0]
        return graph_samples(captured(one, len(contents)), len(contents), 1, None)[0]

    # the writing first: what is judged afterwards is what the last call left
    alone = timed(lambda at: write(contents[at % len(contents)]))
    return timed(both), alone


def spun() -> None:
    """Keep the device busy for APART_CYCLES with nothing: the call that follows is by itself, and the host is ahead of
    it.
    """
    import torch

    torch.cuda._sleep(APART_CYCLES)


def cache_flusher(device: Any, reset: bool = True) -> RunFunction:
    """A function that gives back the cache's persisting part (unless `reset` is False) and overwrites twice the
    device's last-level cache, so that the next kernel finds none of its inputs there.

    The driver gives the persisting part back when it is told to, not in the order of a stream: the device has to have
    finished what it was given before, or lines that the last kernel pins would be pinned after the reset. The
    overwriting is followed by reading, or the next kernel would pay for writing the flush's own lines back; and it is
    done several times
    over, about a tenth of a millisecond, so that the host is mostly ahead again when the next kernel begins."""
    import torch

    properties = torch.cuda.get_device_properties(device)
    buffer = torch.empty(FLUSH_FACTOR * properties.L2_cache_size, dtype=torch.uint8, device=device)
    words, total = buffer.view(torch.float32), torch.empty((), dtype=torch.float32, device=device)
    give_back = persisting_reset() if reset else None

    def flush() -> None:
        if give_back is not None:
            torch.cuda.synchronize(device)
            give_back()
        for _ in range(FLUSH_PASSES):
            buffer.zero_()
        for _ in range(FLUSH_PASSES):
            torch.sum(words, dim=0, out=total)

    return flush


def persisting_reset() -> Callable[[], object]:
    """The driver's cuCtxResetPersistingL2Cache; a function that does nothing where the driver has none."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuCtxResetPersistingL2Cache  # type: ignore[no-any-return]
    except (OSError, AttributeError):
        return lambda: None


def rotation_size(footprint_bytes: int, cache_bytes: int, most: int = 64) -> int:
    """How many copies of a launch's memory are needed so that going round them overflows twice the cache; 1 when `most`
    would not do.

    >>> rotation_size(40 << 20, 50 << 20), rotation_size(200 << 20, 50 << 20), rotation_size(4096, 50 << 20)
    (4, 1, 1)
    """
    if footprint_bytes >= FLUSH_FACTOR * cache_bytes:
        return 1
    copies = -(-FLUSH_FACTOR * cache_bytes // max(1, footprint_bytes)) + 1
    return copies if copies <= most else 1


def cold_probe(device: Any) -> tuple[float, float]:
    """Seconds that a gather takes when the cache holds all it reads, and after the flush. Cold must be clearly slower.

    One element from each 32-byte sector of a quarter of the last-level cache, in random order: that is where a cache
    and memory differ most, while a sum over the same bytes is mostly launch and reduction. It is replayed as a graph,
    so that no launch of the host's is in it.
    """
    import torch

    sectors = torch.cuda.get_device_properties(device).L2_cache_size // 4 // SECTOR_BYTES
    source = torch.ones(sectors, SECTOR_BYTES // 4, dtype=torch.float32, device=device)[:, 0]
    order = torch.randperm(sectors, device=device)
    target = torch.empty(sectors, dtype=torch.float32, device=device)
    flush = cache_flusher(device)

    def gather() -> None:
        torch.index_select(source, 0, order, out=target)

    def warmed() -> None:
        flush()
        gather()

    replay = captured(gather, 1)
    warm = sorted(graph_samples(replay, 1, PROBE_REPEATS, warmed))[PROBE_REPEATS // 2]
    cold = sorted(graph_samples(replay, 1, PROBE_REPEATS, flush))[PROBE_REPEATS // 2]
    return warm, cold
