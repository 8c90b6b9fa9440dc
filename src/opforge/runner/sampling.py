"""Samples of one bound launch by the clock that the parent chose, and what the parent wants to know of the clocks themselves."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from opforge.runner import clocks, device_clocks
from opforge.runner.clocks import Run
from opforge.runner.device_clocks import ClockUnfit

MEMORY_FOR_ROTATION = 0.25


class Rotation:
    """Copies of a launch's memory with a launch bound to each, so that calls in a row find nothing of theirs in the cache."""

    def __init__(self, run: Run, whole: Any, rebind: Callable[[Any], Run]) -> None:
        self.runs = [run]
        self.whole = whole
        self.rebind = rebind
        self.copies: list[Any] = []
        self.replays: dict[tuple[int, int], Run] = {}
        self.flush: Run | None = None

    def replay(self, run: Run, batch: int) -> Run:
        """The graph of `batch` calls of `run`, captured once: a side of a comparison is asked for one sample at a time."""
        key = (batch, len(self.runs))
        if key not in self.replays:
            self.replays[key] = device_clocks.captured(run, batch)
        return self.replays[key]

    def flusher(self) -> Run:
        """The flush of this device's cache, its buffer allocated once."""
        if self.flush is None:
            self.flush = device_clocks.cache_flusher(self.whole.device)
        return self.flush

    def grown(self) -> list[Run]:
        """The runs of a full rotation; only the one where no rotation can overflow the cache within a quarter of the free memory."""
        import torch

        if len(self.runs) == 1:
            footprint = self.whole.numel()
            wanted = device_clocks.rotation_size(footprint, torch.cuda.get_device_properties(self.whole.device).L2_cache_size)
            free, _ = torch.cuda.mem_get_info(self.whole.device)
            if footprint * wanted <= MEMORY_FOR_ROTATION * free:
                for _ in range(wanted - 1):
                    copy = self.whole.clone()
                    self.copies.append(copy)
                    self.runs.append(self.rebind(copy))
        return self.runs


def sample(rotation: Rotation, message: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to "sample": seconds per call by `timer`, with the batch that was really taken.

    `lead` calls are made first and not timed: another side has just had the caches. An unfit clock is an answer,
    {"status": "unfit"}, and no failure of the kernel.
    """
    run, whole = rotation.runs[0], rotation.whole
    batch, count, timer = int(message["batch"]), int(message["count"]), message["timer"]
    for _ in range(int(message.get("lead", 0))):
        run()
    if timer == "host":
        return {"status": "ok", "samples": clocks.host_samples(run, batch, count), "batch": batch}
    flush: Run | None = None
    if message["cache"] == "cold":
        runs = rotation.grown() if timer == "cuda_graph" else rotation.runs[:1]
        run, batch = clocks.spread_out(runs, batch)
        flush = rotation.flusher()
        if len(runs) == 1 and whole.numel() < device_clocks.FLUSH_FACTOR * _cache_bytes(whole):
            batch = 1  # a second call would find what the first one left in the cache
    try:
        if timer == "cuda_graph":
            samples = device_clocks.graph_samples(rotation.replay(run, batch), batch, count, flush)
        else:
            take = {"cuda_event": device_clocks.event_samples, "cupti": device_clocks.cupti_samples}[timer]
            samples = take(run, batch, count, flush)
    except ClockUnfit as error:
        return {"status": "unfit", "reason": str(error)}
    return {"status": "ok", "samples": samples, "batch": batch}


def launch_cost(run: Run, batch: int, count: int) -> list[float]:
    """Seconds the host spends to start one call, without waiting for the device."""
    import torch

    return clocks.launch_samples(run, batch, count, torch.accelerator.synchronize)


def extra_bytes(run: Run, whole: Any) -> int | None:
    """Memory that one call takes beyond the arena, at its peak: workspaces, and outputs that the kernel allocates itself.

    On an accelerator as torch's allocator counts it (a kernel's own cudaMalloc is not seen); on a CPU by the peak of the
    resident set, so that memory the process had touched before is not seen. None where neither can be asked.
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
    try:
        # 5: set the peak of the resident set to what it is now (proc(5))
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return None
    before = _resident("VmRSS")
    run()
    peak = _resident("VmHWM")
    return max(0, peak - before) if before and peak else None


def _resident(name: str) -> int:
    found = re.search(rf"^{name}:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0


def about_clocks(batch: int, count: int, device: Any) -> dict[str, Any]:
    """The sampling loop around an empty call, the host clock's step, the threads CPU kernels use here, and on a GPU
    whether the flush makes the cache cold."""
    import torch

    answer: dict[str, Any] = {
        "status": "ok",
        "samples": clocks.host_samples(lambda: None, batch, count),
        "step": clocks.clock_step(),
        "threads": torch.get_num_threads(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    }
    if device is not None and device.type == "cuda":
        answer["event_step"] = min(sample for sample in device_clocks.event_samples(lambda: None, 1, count, None))
        answer["warm_s"], answer["cold_s"] = device_clocks.cold_probe(device)
    return answer


def _cache_bytes(whole: Any) -> int:
    import torch

    return int(torch.cuda.get_device_properties(whole.device).L2_cache_size)
