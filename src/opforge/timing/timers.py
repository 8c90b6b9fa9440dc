"""Which clock for which kernel: each that is there is tried on the kernel itself, and the trials decide.

The host's clock is right for work that is done when the call returns. On a GPU the replay of a CUDA graph is taken: it
holds the kernels and the gaps between them, no launches by the host. It must not take longer than the events around
ordinary calls do, which hold all of that and the launches. Where it does, or where no graph can be captured, CUPTI is
asked, which sees the kernels alone: it decides between the two. It is not asked otherwise, since a process waits
seconds for the first trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opforge.core.evidence.timing import Untimed
from opforge.core.language import units

GAP_S = 1.5e-6
"""The gaps between a call's kernels, which are in a graph's time and not in CUPTI's: 0.1 to 0.3 us each on an H200, up
to 1.5 us in a call of four small kernels (docs/timing.md).
"""
AGREE = 0.1
"""Two clocks agree that differ by less. A clock that leaves work out differs by more: a half where it sees one of two
kernels.
"""


@dataclass(frozen=True, kw_only=True)
class TimerTrial:
    """What one clock made of a kernel: median seconds per call, or why it cannot time it."""

    median_s: float | None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ChosenTimer:
    """The clock that was chosen, and why."""

    timer: str
    why: str


def clocks_of(device: str) -> tuple[str, ...]:
    """The clocks that may time kernels on a torch device type, in the order in which they are tried."""
    return {"cpu": ("host",), "cuda": ("cuda_graph", "cuda_event", "cupti")}.get(device, ("cuda_event",))


def settled(trials: Mapping[str, TimerTrial]) -> bool:
    """Whether the graph and the events, where both have been tried, do not contradict each other: CUPTI need not be
    asked.
    """
    graph, event = (trials[name].median_s if name in trials else None for name in ("cuda_graph", "cuda_event"))
    return graph is not None and event is not None and graph <= event * (1 + AGREE) + GAP_S


def choose(trials: Mapping[str, TimerTrial]) -> ChosenTimer | Untimed:
    """The ChosenTimer; Untimed where no clock can time this kernel.

    >>> choose({"cuda_graph": TimerTrial(median_s=9e-6), "cuda_event": TimerTrial(median_s=14e-6)}).timer
    'cuda_graph'
    >>> graph, event, cupti = (TimerTrial(median_s=seconds) for seconds in (90e-6, 14e-6, 12e-6))
    >>> choose({"cuda_graph": graph, "cuda_event": event, "cupti": cupti}).timer
    'cuda_event'
    """
    seen = {name: trial.median_s for name, trial in trials.items() if trial.median_s is not None and trial.median_s > 0}
    if "host" in seen:
        return ChosenTimer(timer="host", why="host clock: the work is done when the call returns")
    cupti, graph, event = seen.get("cupti"), seen.get("cuda_graph"), seen.get("cuda_event")
    told = ", ".join(
        f"{word} {units.seconds(value)}"
        for word, value in (("graph", graph), ("events", event), ("CUPTI", cupti))
        if value is not None
    )
    if graph is not None and (event is None or settled(trials)):
        return ChosenTimer(
            timer="cuda_graph",
            why=f"CUDA graph: no longer than the events around ordinary calls ({told})"
            if event is not None
            else f"CUDA graph ({told})",
        )
    if graph is not None and event is not None and cupti is not None:
        if cupti >= graph * (1 - AGREE) - GAP_S:
            return ChosenTimer(
                timer="cuda_graph",
                why="CUDA graph: longer than the events, and CUPTI agrees with it: work that the events do not see "
                f"({told})",
            )
        return ChosenTimer(
            timer="cuda_event",
            why=f"events: the graph takes longer than ordinary calls, and CUPTI does not agree with it ({told})",
        )
    if graph is not None:
        return ChosenTimer(
            timer="cuda_graph",
            why=f"CUDA graph: the longer of two that disagree ({told}); {_reason(trials, 'cupti', 'CUPTI')}",
        )
    if cupti is not None and event is not None and cupti <= event * (1 + AGREE) + GAP_S:
        return ChosenTimer(
            timer="cupti", why=f"CUPTI kernel time, gaps left out ({told}): {_reason(trials, 'cuda_graph', 'a graph')}"
        )
    if event is not None:
        return ChosenTimer(
            timer="cuda_event", why=f"events, launch cost included: {_reason(trials, 'cuda_graph', 'a graph')}"
        )
    return Untimed(
        reason="; ".join(f"{name}: {trial.reason}" for name, trial in trials.items()) or "no clock was tried"
    )


def _reason(trials: Mapping[str, TimerTrial], name: str, words: str) -> str:
    trial = trials.get(name)
    return trial.reason if trial is not None and trial.reason else f"{words} was not tried"
