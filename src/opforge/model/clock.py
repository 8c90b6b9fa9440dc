"""How long each node of a model takes on this machine, and the model as a user calls it.

Nodes are told apart by who ran them, never by a kernel's name: on a CPU the clock stands around each node; on an
accelerator the profiler gives what a node's own span launched, by correlation id. Passes over the nodes and plain calls
of the model take turns, so that both meet the same machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch

from opforge.model.nodes import Graph
from opforge.model.recorded import recorded_seconds
from opforge.model.source import Loaded
from opforge.model.trace import Program, arguments_of, quietly, step_of

FEWEST, MOST = 3, 50
"""Rounds: so many even where one takes longer than the budget, and no more however short it is."""
UNSTEADY = 1.25
"""Nodes one by one lack what a call does besides; where they take so much longer than it, something else ran."""
SPAN = "opforge node "
"""What a node's span is called in a profile."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Medians over rounds, in seconds.

    nodes   one for each node of the graph
    whole   the model's own call (of a training step with its backward pass), Python and all
    how     in words
    """

    nodes: tuple[float, ...]
    whole: float
    rounds: int
    how: str

    @property
    def unsteady(self) -> str:
        """Why the times mean little, with what to do; "" where they hold together."""
        if self.computing <= UNSTEADY * self.whole:
            return ""
        return (
            f"unsteady: the nodes took {self.computing / self.whole:.1f} times as long as the whole call, so other "
            "work had the machine; measure again with a larger --budget, on a quieter machine"
        )

    @property
    def computing(self) -> float:
        """All nodes together."""
        return sum(self.nodes)

    @property
    def outside(self) -> float:
        """The share of the whole that is spent outside of any node: Python, dispatch, autograd's book-keeping."""
        return max(0.0, 1.0 - self.computing / self.whole) if self.whole > 0 else 0.0


class _Clocked(torch.fx.Interpreter):
    """Runs a graph with the clock around each call of an operator."""

    def __init__(self, program: Program, clock: Callable[[], float]) -> None:
        super().__init__(program.module)
        self.places, self.clock = program.places, clock
        self.seconds = [0.0] * len(program.graph.nodes)
        self.at: int | None = None

    def run_node(self, n: torch.fx.Node) -> Any:
        """As Interpreter's, knowing which node it is."""
        self.at = self.places.get(n.name)
        return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The call alone is timed: neither the look-up of its arguments nor the release of what is used up."""
        begun = self.clock()
        returned = target(*args, **kwargs)
        ended = self.clock()
        if self.at is not None:
            self.seconds[self.at] += ended - begun
        return returned


class _Spanned(torch.fx.Interpreter):
    """Runs a graph with a span of the profiler around each call of an operator."""

    def __init__(self, program: Program) -> None:
        super().__init__(program.module)
        self.places = program.places

    def run_node(self, n: torch.fx.Node) -> Any:
        """As Interpreter's, in a span."""
        at = self.places.get(n.name)
        if at is None:
            return super().run_node(n)
        with torch.profiler.record_function(f"{SPAN}{at}"):
            return super().run_node(n)


def by_clock(program: Program, clock: Callable[[], float] = perf_counter) -> list[float]:
    """Seconds of each node in one pass."""
    runner = _Clocked(program, clock)
    with torch.no_grad():
        runner.run(*program.inputs)
    return runner.seconds


def by_profiler(program: Program, device: str) -> list[float]:
    """Seconds of each node in one pass: of what its span launched on the device; on a CPU of the span itself."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    elif device == "xpu":
        activities.append(torch.profiler.ProfilerActivity.XPU)
    with torch.no_grad(), torch.profiler.profile(activities=activities) as profile:
        _Spanned(program).run(*program.inputs)
        _wait(device)
    seconds = [0.0] * len(program.graph.nodes)
    for event in profile.events():
        # a span has a twin among the device's events; it is what was launched that counts
        if event.name.startswith(SPAN) and event.device_type == torch.autograd.DeviceType.CPU:
            micro = event.cpu_time_total if device == "cpu" else event.device_time_total
            seconds[int(event.name.removeprefix(SPAN))] += micro * 1e-6
    return seconds


def whole_call(loaded: Loaded, *, training: bool) -> Callable[[], None]:
    """The model as a user calls it; of a training step with its backward pass."""
    step = step_of(loaded, training)
    args, named = arguments_of(loaded, training)
    reached = [one for one in step.parameters() if one.requires_grad]

    def call() -> None:
        if training:
            torch.autograd.grad(step(*args, **named), reached, allow_unused=True)
        else:
            with torch.no_grad():
                step(*args, **named)

    return call


def measured(
    loaded: Loaded,
    graph: Graph,
    program: Program | None,
    *,
    device: str,
    budget_s: float,
    clock: Callable[[], float] = perf_counter,
) -> Measured:
    """Every node's time and the whole call's, in turns until the budget is spent.

    program   the exported graph; None where the graph is a recorded call
    """
    call = whole_call(loaded, training=graph.training)

    def nodes() -> list[float]:
        if program is None:
            return recorded_seconds(loaded, graph.training, clock)
        return by_clock(program, clock) if device == "cpu" else by_profiler(program, device)

    def whole() -> float:
        begun = clock()
        call()
        _wait(device)
        return clock() - begun

    with quietly():
        nodes(), whole()
        begun = clock()
        passes: list[list[float]] = []
        wholes: list[float] = []
        while len(passes) < FEWEST or (len(passes) < MOST and clock() - begun < budget_s):
            passes.append(nodes())
            wholes.append(whole())
    return Measured(
        nodes=_medians(passes, len(graph.nodes)),
        whole=median(wholes),
        rounds=len(passes),
        how="the clock around each node"
        if device == "cpu" or program is None
        else "the profiler's correlation ids, by node",
    )


def _medians(passes: Sequence[Sequence[float]], count: int) -> tuple[float, ...]:
    """Node by node; of a recorded call that went another way only the nodes up to there count."""
    return tuple(median(one[at] if at < len(one) else 0.0 for one in passes) for at in range(count))


def _wait(device: str) -> None:
    module: Any = getattr(torch, device, None)
    if device != "cpu" and hasattr(module, "synchronize"):
        module.synchronize()
