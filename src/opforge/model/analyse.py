"""The job: a model by its words, its graph, its times where the device is here, and the analysis of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from torch._subclasses.fake_tensor import FakeTensorMode

from opforge.core.definition.device import DeviceSpec
from opforge.model.analysis import Analysis, analysis_of
from opforge.model.clock import measured
from opforge.model.covered import Coverage
from opforge.model.nodes import Graph
from opforge.model.recorded import recorded
from opforge.model.source import load_model
from opforge.model.trace import NotExported, Program, exported
from opforge.registry import Registry


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is analysed, and where.

    device      a torch device type that is here; "meta" for shapes alone
    spec        the device whose roofs are asked
    measure     whether the nodes are run and timed, which needs the device of `spec` here
    hooks       whether to record a call without asking torch.export first
    """

    model: str
    fields: Sequence[str]
    batch: int
    length: int
    dtype: str
    training: bool
    device: str
    spec: DeviceSpec
    measure: bool
    budget_s: float
    hooks: bool = False


SAME = 0.01
"""Products of matrices may differ by so much of their FLOPs before a note says so."""


def with_note(graph: Graph, plain: Graph) -> Graph:
    """An exported graph with a note where a plain call does other work: models may ask whether they are traced."""
    if not plain.products or abs(graph.products / plain.products - 1) <= SAME:
        return graph
    words = f"traced, it does {graph.products / plain.products:.2f} times the FLOP in products of a plain call"
    return replace(graph, note=f"{words}; --hooks analyses that call")


def with_uncounted(graph: Graph) -> Graph:
    """A graph with a note where the arithmetic of an operator is not counted."""
    lost = [node for node in graph.nodes if node.uncounted]
    if not lost:
        return graph
    words = (
        f"the arithmetic of {len(lost)} of the nodes is not counted, first of {lost[0].operator} ({lost[0].uncounted})"
    )
    return replace(graph, note="; ".join(filter(None, (graph.note, words))))


def analyse(asked: Asked, registry: Registry, tell: Callable[[str], None] = lambda _: None) -> Analysis:
    """The Analysis. Raises UsageError, EnvironmentLacks.

    tell   is called with a line about each step
    """
    meta = asked.device == "meta"
    tell(f"makes {asked.model}")
    # of tensors on "meta" AOTAutograd makes no backward pass; fake ones say that they lie on a processor
    faked = meta and asked.training and not asked.model.endswith(".pt2")
    with FakeTensorMode(allow_non_fake_inputs=True) if faked else nullcontext():
        loaded = load_model(
            asked.model,
            asked.fields,
            batch=asked.batch,
            length=asked.length,
            dtype=asked.dtype,
            device="cpu" if meta else asked.device,
            meta=meta and not faked,
        )
    program: Program | None = None
    tell("traces its graph")
    try:
        if asked.hooks:
            raise NotExported("--hooks was given")
        program = exported(loaded, training=asked.training)
        # a call without contents may ask for one
        graph = program.graph if meta else with_note(program.graph, recorded(loaded, training=asked.training, why=""))
    except NotExported as error:
        tell(f"records a call of it: torch.export has no graph ({error})")
        graph = recorded(loaded, training=asked.training, why=str(error))
    graph = with_uncounted(graph)
    times = None
    if asked.measure:
        tell("times its nodes")
        times = measured(loaded, graph, program, device=asked.device, budget_s=asked.budget_s)
    return analysis_of(
        graph,
        model=loaded.name,
        about=loaded.about,
        device=asked.spec,
        dtype=asked.dtype,
        coverage=Coverage(registry),
        measured=times,
    )
