"""A captured graph of a kernel whose tensors have allocations of their own reads the new inputs there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from opforge.runner.wire.messages import Replay
from opforge.runner.worker import device_clocks
from opforge.runner.worker.executor import Executor
from opforge.runner.worker.placement import Placement


class Memory:
    """An arena with one tensor of four numbers."""

    place = "plain"

    def __init__(self) -> None:
        self.size = 16
        self.slots = [
            SimpleNamespace(name="x", becomes=None, offset=0, span_bytes=16, shape=(4,), strides=(1,), dtype="float32")
        ]
        self.content = torch.zeros(16, dtype=torch.uint8)

    def bytes(self) -> torch.Tensor:
        return self.content


def test_a_graph_of_an_operator_in_place_is_replayed_on_new_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile was called wrong where an operator overwrites its input: what was new reached the arena's copy on
    the device, and not the allocations that the graph had captured."""
    arena: Any = Memory()
    whole = arena.bytes().clone()
    placement = Placement(arena, whole, fenced=False, apart=True)
    tensor = placement.tensors(whole)["x"]
    monkeypatch.setattr(device_clocks, "captured", lambda run, batch: run)
    executor = Executor()
    launch: Any = SimpleNamespace(run=lambda: tensor.mul_(2), ready=lambda: None)
    executor.launches[1] = launch, arena, whole
    executor.placements[1] = placement
    monkeypatch.setattr(executor, "_collect", lambda number: None)
    arena.content.view(torch.float32)[:] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    executor.replay(Replay(launch=1), ())
    assert tensor.tolist() == [2.0, 4.0, 6.0, 8.0]
