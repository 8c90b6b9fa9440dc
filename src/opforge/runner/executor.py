"""Does what the parent asks, in whatever process it is: binds, runs, samples. It decides nothing and judges nothing."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opforge.core.errors import EnvironmentLacks
from opforge.core.implementation import Config, Rejected
from opforge.registry import load
from opforge.runner import clocks
from opforge.runner.arena import Arena, view
from opforge.runner.launch import Launch, bind, synchronize


class Executor:
    """Launches by number, and the arenas they read and write."""

    def __init__(self) -> None:
        self.launches: dict[int, tuple[Launch, Arena, Any]] = {}
        self.next = 0

    def handle(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> dict[str, Any]:
        """The answer to one message. Whatever a kernel raises becomes {"status": "failed"}."""
        do = {"bind": self.bind, "run": self.run, "sample": self.sample, "collect": self.collect, "release": self.release, "overhead": self.overhead}
        try:
            return do[message["do"]](message, fds)
        except EnvironmentLacks as error:
            return {"status": "lacks", "reason": str(error)}
        except Exception as error:  # the boundary to foreign code: every exception becomes a verdict in the parent
            trace = "".join(traceback.format_exception(error)[-4:])
            return {"status": "failed", "reason": f"{type(error).__name__}: {error}", "trace": trace[-4000:]}

    def bind(self, message: Mapping[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """Map the arena, bind the implementation to its tensors, compile what needs compiling."""
        arena = Arena.attach(message["arena"], fds[0])
        registry = load([Path(home) for home in message["homes"]])
        operator = registry.operator(message["operator"])
        implementation = registry.implementation(message["operator"], message["implementation"])
        whole = arena.bytes()
        if message["device"] != "cpu":
            whole = whole.to(message["device"])
        tensors = {slot.name: view(whole, slot) for slot in arena.slots}
        axes = {name: tuple(value) if isinstance(value, list) else value for name, value in message["axes"].items()}
        config = None if message["config"] is None else Config(tuple((name, value) for name, value in message["config"]))
        launch = bind(
            operator,
            implementation,
            {spec.name: tensors[spec.name] for spec in operator.inputs},
            {spec.name: tensors[spec.name] for spec in operator.outputs},
            message["scalars"],
            axes,
            message["dtype"],
            config,
        )
        if isinstance(launch, Rejected):
            arena.close()
            return {"status": "rejected", "reason": launch.reason}
        self.next += 1
        self.launches[self.next] = (launch, arena, whole)
        return {"status": "bound", "launch": self.next, "notes": list(launch.notes)}

    def run(self, message: Mapping[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """Take the arena's bytes as they are now, run once, put the outputs back."""
        launch, arena, whole = self.launches[message["launch"]]
        if message.get("upload", True) and whole.device.type != "cpu":
            whole.copy_(arena.bytes())
        launch.run()
        return self.collect(message, fds)

    def collect(self, message: Mapping[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """Put what the last run left into the arena."""
        launch, arena, whole = self.launches[message["launch"]]
        outputs = launch.read()
        synchronize(whole)
        if whole.device.type != "cpu":
            arena.bytes().copy_(whole)
        here = arena.tensors("output")
        for name, tensor in outputs.items():
            if tensor.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr():
                here[name].copy_(tensor)
        return {"status": "ok"}

    def sample(self, message: Mapping[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """Samples in seconds per call, by the clock the parent chose."""
        launch, _, whole = self.launches[message["launch"]]
        batch, count = message["batch"], message["count"]
        if message["timer"] == "host":
            samples = clocks.host_samples(launch.run, batch, count)
        else:
            flush = clocks.cache_flusher(whole.device) if message["cache"] == "cold" else None
            take = clocks.graph_samples if message["timer"] == "cuda_graph" else clocks.event_samples
            samples = take(launch.run, batch, count, flush)
        return {"status": "ok", "samples": samples}

    def overhead(self, message: Mapping[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """The sampling loop around an empty call: what the loop itself costs, and how many threads CPU kernels use here."""
        import torch

        samples = clocks.host_samples(lambda: None, message["batch"], message["count"])
        return {"status": "ok", "samples": samples, "threads": torch.get_num_threads(), "cpus": len(os.sched_getaffinity(0))}

    def release(self, message: Mapping[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """Forget a launch and give its memory back."""
        _, arena, _ = self.launches.pop(message["launch"])
        arena.close()
        return {"status": "ok"}
