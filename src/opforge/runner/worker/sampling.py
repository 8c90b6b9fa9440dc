"""Samples of one bound launch by the clock that the parent chose, and what the parent wants to know of the clocks
themselves.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opforge.runner.walls.guards import ALL, Guards
from opforge.runner.wire.messages import OTHER, Clocks, Sample, Samples, Unfit, Unlike, Work
from opforge.runner.worker import clocks, device_clocks, sample_requests
from opforge.runner.worker.clocks import RunFunction
from opforge.runner.worker.device_clocks import ClockUnfit, UnlikeCalls

MEMORY_FOR_ROTATION = 0.25
"""The share of a device's free memory that copies may take: the kernel's own scratch, and neighbours, need the rest."""
GRAIN = 1 << 20
"""Bytes that count as nothing: the system counts pages in bundles."""


class Rotation:
    """Copies of a launch's memory with a launch bound to each, so that calls in a row find nothing of theirs in the
    cache.

    guards   without `cold`, nothing rotates and the cache's persisting part is left as it is; without `equal_nodes`
             calls in one graph may differ in how much they launch
    bring    copies the memory's content to where the first launch reads it, where that is elsewhere
    """

    def __init__(
        self,
        run: RunFunction,
        whole: Any,
        rebind: Callable[[Any], RunFunction],
        guards: Guards = ALL,
        bring: Callable[[], object] = lambda: None,
    ) -> None:
        self.bring = bring
        self.runs = [run]
        self.whole = whole
        self.rebind = rebind
        self.cold = guards.cold
        self.alike = guards.equal_nodes
        self.copies: list[Any] = []
        self.replays: dict[tuple[int, int], RunFunction] = {}
        self.flush: RunFunction | None = None

    def replay(self, run: RunFunction, batch: int) -> RunFunction:
        """The graph of `batch` calls of `run`, captured once: a side of a comparison is asked for one sample at
        a time.
        """
        key = (batch, len(self.runs))
        if key not in self.replays:
            self.replays[key] = device_clocks.captured(run, batch, self.alike)
        return self.replays[key]

    def spare(self) -> None:
        """Give back the graphs, which are captured again when one is asked for, and what calls took."""
        self.replays.clear()
        give_back(self.whole.device)

    def flusher(self) -> RunFunction:
        """The flush of this device's cache, its buffer allocated once."""
        if self.flush is None:
            self.flush = device_clocks.cache_flusher(self.whole.device, self.cold)
        return self.flush

    def grown(self) -> list[RunFunction]:
        """The runs of a full rotation; only the one where no rotation can overflow the cache within a quarter of the
        free memory.
        """
        import torch

        if len(self.runs) == 1 and self.cold:
            footprint = self.whole.numel()
            wanted = device_clocks.rotation_size(
                footprint, torch.cuda.get_device_properties(self.whole.device).L2_cache_size
            )
            free, _ = torch.cuda.mem_get_info(self.whole.device)
            if footprint * wanted <= MEMORY_FOR_ROTATION * free:
                for _ in range(wanted - 1):
                    copy = self.whole.clone()
                    self.copies.append(copy)
                    self.runs.append(self.rebind(copy))
        return self.runs


def sample(
    rotation: Rotation,
    question: Sample,
    fds: Sequence[int] = (),
    ready: RunFunction = lambda: None,
    same: RunFunction = lambda: None,
    collect: Callable[[], int | None] = lambda: None,
    filled: int = 0,
) -> Samples | Unfit | Unlike:
    """The answer to Sample: seconds per call by `timer`, with the batch that was really taken.

    By the host's clock what is asked comes as a SampleRequest, through the descriptor that is given: until it is over
    nothing here says what it was. Else `lead` calls are made first and not timed: another side has just had the caches.
    `apart`: on a GPU each sample, with a warm cache, comes long after what ran before it. An unfit clock is an answer,
    Unfit, and no failure of the kernel.

    ready   makes again what is made of the inputs before a call, where they are said to have changed
    same    does as much where they were written and have not changed
    collect puts what the last call left into the arena, where a SampleRequest asks for it, and gives its checksum
    filled  before so many calls of a SampleRequest's lead the allocator's caches are filled (result_memory.py)
    """
    if fds:
        taken = sample_requests.sampler()(rotation.runs[0], ready, same, fds[0], rotation.whole.data_ptr(), filled)
        left = collect() if taken.collected else None
        return Samples(samples=tuple(taken.samples), batch=taken.batch, lead_s=taken.led, left=left)
    run, whole = rotation.runs[0], rotation.whole
    batch, count, timer = question.batch, question.count, question.timer
    if question.written:
        (ready if question.written == OTHER else same)()
    for _ in range(question.lead):
        run()
    if timer == "host":
        return Samples(samples=tuple(clocks.host_samples(run, batch, count)), batch=batch)
    flush: RunFunction | None = device_clocks.spun if question.apart else None
    if question.cache == "cold" and question.places:
        flush = rotation.flusher()
    elif question.cache == "cold":
        runs = rotation.grown() if timer == "cuda_graph" else rotation.runs[:1]
        run, batch = clocks.spread_out(runs, batch)
        flush = rotation.flusher()
        if len(runs) == 1 and whole.numel() < device_clocks.FLUSH_FACTOR * _cache_bytes(whole):
            batch = 1  # a second call would find what the first one left in the cache
    try:
        if question.places and ready is same:
            # what a forward pass keeps is made once before the calls: it would not be that of the content
            return Unfit(reason="it keeps what its forward pass made of the inputs")
        if question.places:
            write = writer(whole, question.places)

            def written(content: int) -> object:
                write(content)
                return rotation.bring()

            took, alone = device_clocks.row(
                run, written, question.contents, timer == "cuda_graph" and flush is None, flush
            )
            if question.collected:
                collect()
            return Samples(samples=(took,), batch=1, lead_s=alone)
        if timer == "cuda_graph":
            samples = device_clocks.graph_samples(rotation.replay(run, batch), batch, count, flush)
        else:
            take = {"cuda_event": device_clocks.event_samples, "cupti": device_clocks.cupti_samples}[timer]
            samples = take(run, batch, count, flush)
    except ClockUnfit as error:
        return Unfit(reason=str(error))
    except UnlikeCalls as error:
        return Unlike(reason=str(error))
    return Samples(samples=tuple(samples), batch=batch)


def writer(whole: Any, places: Sequence[tuple[int, bytes, bytes]]) -> Callable[[int], object]:
    """A function that writes the first or the second content of some places to a device's memory, in one kernel."""
    import torch

    at = torch.tensor([offset + byte for offset, one, _ in places for byte in range(len(one))], device=whole.device)
    values = [
        torch.tensor(list(b"".join(content)), dtype=torch.uint8, device=whole.device)
        for content in ([one for _, one, _ in places], [other for _, _, other in places])
    ]
    return lambda content: whole.index_copy_(0, at, values[content])


def work(run: RunFunction, count: int) -> Work | Unfit:
    """The answer to DeviceWork: how many kernels, copies and fills the device did for `count` calls in a row, on all
    streams, and
    the seconds in which it was busy with them. Unfit where the profiler sees none."""
    seen = device_clocks.busy(run, count)
    if not seen:
        return Unfit(reason="the profiler saw no device work")
    return Work(pieces=len(seen), busy=device_clocks.union(seen) / 1e9)


def launch_cost(run: RunFunction, batch: int, count: int) -> list[float]:
    """Seconds the host spends to start one call, without waiting for the device."""
    import torch

    return clocks.launch_samples(run, batch, count, torch.accelerator.synchronize)


def peak_reset() -> int | None:
    """A descriptor through which this process's peak of the resident set can be set back; None where the system has
    none.

    Opened before a worker gives up the right to write: afterwards /proc is closed to it too.
    """
    try:
        return os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return None


def give_back(device: Any) -> None:
    """Return what this process holds of an accelerator's memory and no longer uses: others will want it."""
    import torch

    if device.type != "cpu":
        torch.accelerator.synchronize()
        torch.get_device_module().empty_cache()


def extra_bytes(run: RunFunction, whole: Any, reset: int | None = None) -> int | None:
    """Memory that one call takes beyond the arena, at its peak: workspaces, and outputs that the kernel allocates
    itself.

    On an accelerator as torch's allocator counts it (a kernel's own cudaMalloc is not seen); on a CPU by the peak of
    the resident set, after malloc was asked to give back what it keeps for later (what it keeps all the same is not
    seen); less than GRAIN counts as nothing, because the system counts pages in bundles. None where neither can be
    asked.

    reset   a `peak_reset`; opened here when it is not given
    """
    if whole.device.type != "cpu":
        import torch

        module = torch.get_device_module(whole.device)
        if not hasattr(module, "reset_peak_memory_stats"):
            return None
        run()
        torch.accelerator.synchronize()
        before = module.memory_allocated()
        module.reset_peak_memory_stats()
        run()
        torch.accelerator.synchronize()
        return int(module.max_memory_allocated() - before)
    descriptor = peak_reset() if reset is None else reset
    if descriptor is None:
        return None
    run()
    with contextlib.suppress(OSError, AttributeError):  # a C library without it keeps what it keeps
        ctypes.CDLL(None).malloc_trim(0)
    try:
        # 5: set the peak of the resident set to what it is now (proc(5))
        os.write(descriptor, b"5")
    except OSError:
        return None
    finally:
        if reset is None:
            os.close(descriptor)
    before = _resident("VmRSS")
    run()
    peak = _resident("VmHWM")
    if not before or not peak:
        return None
    return peak - before if peak - before >= GRAIN else 0


def _resident(name: str) -> int:
    match = re.search(rf"^{name}:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"), re.MULTILINE)
    return int(match.group(1)) * 1024 if match else 0


def about_clocks(batch: int, count: int, device: Any) -> Clocks:
    """The sampling loop around an empty call, the host clock's step, the threads CPU kernels use here, and on a GPU
    whether the flush makes the cache cold."""
    import torch

    seen = Clocks(
        samples=tuple(clocks.host_samples(lambda: None, batch, count)),
        step=clocks.clock_step(),
        threads=torch.get_num_threads(),
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    )
    if device is None or device.type != "cuda":
        return seen
    event_step = min(device_clocks.event_samples(lambda: None, 1, count, None))
    warm_s, cold_s = device_clocks.cold_probe(device)
    return dataclasses.replace(seen, event_step=event_step, warm_s=warm_s, cold_s=cold_s)


def _cache_bytes(whole: Any) -> int:
    import torch

    return int(torch.cuda.get_device_properties(whole.device).L2_cache_size)
