"""Which clock for which kernel: each that is there is tried on the kernel itself, and the trials decide.

The host's clock is right for work that is done when the call returns. On a GPU, CUPTI sees kernels alone, without gaps
and launches; a CUDA graph has the gaps, not the launches; events have everything the host does not hide. So CUPTI is
taken where it agrees with the graph, the graph where CUPTI sees less than the graph does (work it cannot attribute, or
none), and events where no graph can be captured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opforge.core import units

GAP_S = 1.5e-6
AGREE = 0.1


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What one clock made of a kernel: median seconds per call, or why it cannot time it."""

    median_s: float | None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The clock that was chosen, and why."""

    timer: str
    why: str


def candidates(device: str) -> tuple[str, ...]:
    """The clocks that may time kernels on a torch device type, best first."""
    return {"cpu": ("host",), "cuda": ("cupti", "cuda_graph", "cuda_event")}.get(device, ("cuda_event",))


def choose(trials: Mapping[str, Trial]) -> Choice | str:
    """The Choice, or why no clock can time this kernel.

    CUPTI's figure must not exceed the graph's, and may be shorter by AGREE and one gap between kernels.

    >>> choose({"cupti": Trial(median_s=9e-6), "cuda_graph": Trial(median_s=10e-6)}).timer
    'cupti'
    >>> choose({"cupti": Trial(median_s=2e-6), "cuda_graph": Trial(median_s=10e-6)}).timer
    'cuda_graph'
    """
    seen = {name: trial.median_s for name, trial in trials.items() if trial.median_s is not None and trial.median_s > 0}
    if "host" in seen:
        return Choice(timer="host", why="host clock: the work is done when the call returns")
    cupti, graph, event = seen.get("cupti"), seen.get("cuda_graph"), seen.get("cuda_event")
    if cupti is not None and graph is not None:
        told = f"CUPTI {units.seconds(cupti)}, graph {units.seconds(graph)}"
        if cupti > graph * (1 + AGREE) + GAP_S:
            return Choice(timer="cuda_graph", why=f"CUDA graph: CUPTI reports more than the graph took ({told}), tracing disturbs this kernel")
        if cupti < graph * (1 - AGREE) - GAP_S:
            return Choice(timer="cuda_graph", why=f"CUDA graph: CUPTI sees less than the graph took ({told})")
        return Choice(timer="cupti", why=f"CUPTI kernel time: it agrees with the graph ({told})")
    if graph is not None:
        return Choice(timer="cuda_graph", why=f"CUDA graph: {_reason(trials, 'cupti', 'CUPTI')}")
    if event is not None:
        return Choice(timer="cuda_event", why=f"events, launch cost included: {_reason(trials, 'cuda_graph', 'no graph')}")
    return "; ".join(f"{name}: {trial.reason}" for name, trial in trials.items()) or "no clock was tried"


def _reason(trials: Mapping[str, Trial], name: str, words: str) -> str:
    trial = trials.get(name)
    return trial.reason if trial is not None and trial.reason else f"{words} was not tried"
