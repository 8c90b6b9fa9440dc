"""Whether honest times are called suspect: ceilings and times taken while other processes have the processors, and
times taken afterwards, by ceilings of the busy hour. A part of scripts/trust.py.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from trust_parts import PARTS

if TYPE_CHECKING:
    from opforge.core.evidence.verdict import Pass
    from opforge.registry import Registry
    from opforge.runner import Host
    from opforge.trial.verified_before import VerifiedKey

LOAD = 4
"""Processes beside the bench: issue 20's figure is of a machine with load 4."""
SHAPES = {
    "relu": ("shape=512x512", "shape=2048x1024"),
    "gelu": ("shape=512x512", "shape=1024x768"),
    "silu_mul": ("shape=512x512",),
    "vector_add": ("shape=512x512", "shape=2048x1024"),
    "bias_add": ("lead=512,tail=768",),
    "softmax": ("attention_gpt2", "vocabulary_gpt2"),
    "rmsnorm": ("qwen25_05b_prompt",),
    "layernorm": ("bert_base",),
    "transpose": ("scores_bert_base",),
    "mean_var": ("bert_base",),
    "matmul": ("square_256", "projection_gpt2"),
}
"""Of the operators' workloads those of at most 16 MiB, and shapes beside the caches' sizes: what is asked is whether a
time is believed, and each takes a second."""
QUICK = ("relu", "softmax", "matmul")
BUDGET_S = 0.05
ROUNDS = 12


@dataclass(kw_only=True)
class Asked:
    """Times that were asked for: how many were taken, which of them were called suspect, and which were refused."""

    times: int = 0
    suspect: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def words(self) -> str:
        """The counts, with the first few names."""
        told = [f"{len(self.suspect)} of {self.times} called suspect, {len(self.refused)} not timed"]
        return "\n    ".join([*told, *self.suspect[:5], *self.refused[:5]])


def asked(load: Callable[[int], AbstractContextManager[None]], *, quick: bool) -> Iterator[tuple[str, str, str, bool]]:
    """Name, what is wanted, what was found, and whether it holds: under load, and then without it."""
    from opforge.machine import measure_ceilings

    least, later = (24, 8) if quick else (100, 30)
    operators = QUICK if quick else tuple(SHAPES)

    def ceilings() -> None:
        with load(LOAD):
            measure_ceilings("cpu")

    with ExitStack() as stack:
        folder = PARTS.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        registry, host = stack.enter_context(benching(folder))
        PARTS.part("suspect: ceilings", ceilings)
        name = f"honest times at load {LOAD}"
        busy = _until(least, name, partial(load, LOAD), registry, host, operators)
        yield name, f"0 of {least} suspect or refused", busy.words(), _clean(busy, least)
        # another run, as a user starts it later
        with patch.dict("opforge.machine.ceilings._RENEWED", clear=True):
            name = f"the same afterwards, by ceilings of load {LOAD}"
            calm = _until(later, name, partial(load, 0), registry, host, operators)
        yield name, f"0 of {later} suspect or refused", calm.words(), _clean(calm, later)


@contextmanager
def benching(folder: Path) -> Iterator[tuple[Registry, Host]]:
    """A registry and a host; ceilings are kept in `folder`, so that those of this machine stay as they are."""
    import torch

    from opforge.registry import load as registry_of
    from opforge.runner import Isolated

    with ExitStack() as stack:
        # as many threads as a user has: those that wait for each other on busy processors are what is asked about
        threads = os.cpu_count() or 1
        stack.enter_context(patch.dict(os.environ, {"OMP_NUM_THREADS": str(threads)}))
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(threads)
        # compiled kernels are found all the same
        stack.enter_context(patch("opforge.machine.saved_ceilings.cache_folder", lambda: folder))
        yield registry_of([]), stack.enter_context(Isolated())


def _clean(found: Asked, least: int) -> bool:
    return found.times >= least and not found.suspect and not found.refused


def _until(
    least: int,
    figure: str,
    load: Callable[[], AbstractContextManager[None]],
    registry: Registry,
    host: Host,
    operators: tuple[str, ...],
) -> Asked:
    """At least so many times of honest implementations: every operator's C++ kernels and PyTorch, one shape after
    another, verified in the first round. Each bench is a part of the figure, beside `load`.
    """
    found, proven = Asked(), {}

    def one(name: str) -> dict[str, Any]:
        new = Asked()
        with load():
            _bench(new, proven, registry, host, name)
        return asdict(new)

    for number in range(ROUNDS * len(operators)):
        if found.times >= least:
            break
        new = Asked(**PARTS.part(f"{figure}: bench {number + 1}", partial(one, operators[number % len(operators)])))
        found = Asked(
            times=found.times + new.times, suspect=found.suspect + new.suspect, refused=found.refused + new.refused
        )
    return found


def _bench(found: Asked, proven: dict[VerifiedKey, Pass], registry: Registry, host: Host, name: str) -> None:
    from opforge.core.evidence.verdict import Pass, Unsupported
    from opforge.timing import Plan
    from opforge.verify.cases.hidden import QUICK as BRIEFLY
    from opforge.workbench import BenchOptions, bench

    options = BenchOptions(
        device="cpu",
        dtypes=("float32",),
        backends=("torch", "cpp"),
        workloads=SHAPES[name],
        plan=Plan(samples=5, budget_s=BUDGET_S),
        effort=replace(BRIEFLY, hidden=0, repeats=0, seconds=0.0, shrink_s=0.0),
        proven=proven,
    )
    # whether its bound is adequate has been asked, and is not what is asked here
    with patch("opforge.workbench.bench.ensure_adequate", lambda operator: None):
        for record in bench(registry, [name], options, host):
            told = f"{record.operator} {record.implementation} {record.workload}"
            if record.timing is not None:
                found.times += 1
                if isinstance(record.verdict, Pass):
                    proven[name, record.implementation, record.dtype] = record.verdict
                if record.timing.suspect is not None:
                    found.suspect.append(f"{told}: {record.timing.suspect}")
            elif not isinstance(record.verdict, Unsupported):
                words = getattr(record.verdict, "reason", "") or getattr(record.verdict, "cause", "")
                found.refused.append(f"{told}: {type(record.verdict).__name__} {words}")
