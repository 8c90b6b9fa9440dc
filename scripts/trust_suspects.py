"""Whether honest times are called suspect: ceilings and times taken while other processes have the processors, and
times taken afterwards, by ceilings of the busy hour. A part of scripts/trust.py.

By itself it works in slices: `python scripts/trust_suspects.py FOLDER --limit 240`, again and again until its 100 times
are there. The folder keeps the busy ceilings and what was found. Other work on this machine counts as load.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

if TYPE_CHECKING:
    from opforge.core.verdict import Pass
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
    with tempfile.TemporaryDirectory() as folder, benching(Path(folder)) as (registry, host):
        with load(LOAD):
            measure_ceilings("cpu")
            busy = _until(least, registry, host, operators)
        yield f"honest times at load {LOAD}", f"0 of {least} suspect or refused", busy.words(), _clean(busy, least)
        # another run, as a user starts it later
        with patch.dict("opforge.machine.ceilings._RENEWED", clear=True):
            calm = _until(later, registry, host, operators)
        yield (
            f"the same afterwards, by ceilings of load {LOAD}",
            f"0 of {later} suspect or refused",
            calm.words(),
            _clean(calm, later),
        )


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


def main() -> int:
    """One slice; 1 when a time was called suspect, or an honest kernel was refused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=float, default=240.0, help="seconds after which no operator is begun")
    parser.add_argument("--times", type=int, default=100)
    given = parser.parse_args()
    from trust import load

    from opforge.machine import measure_ceilings

    given.folder.mkdir(parents=True, exist_ok=True)
    state, ends = given.folder / "found.json", time.monotonic() + given.limit
    found, at = Asked(), 0
    if state.exists():
        kept = json.loads(state.read_text(encoding="utf-8"))
        at = kept.pop("at")
        found = Asked(**kept)
    proven: dict[VerifiedKey, Pass] = {}
    others = int(os.getloadavg()[0])
    with benching(given.folder) as (registry, host), load(max(0, LOAD - others)):
        if not (given.folder / "machine").exists():
            measure_ceilings("cpu")
        while found.times < given.times and time.monotonic() < ends:
            name = tuple(SHAPES)[at % len(SHAPES)]
            began = time.monotonic()
            _bench(found, proven, registry, host, name)
            at += 1
            state.write_text(json.dumps({**asdict(found), "at": at}), encoding="utf-8")
            print(
                f"{name}: {time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f}; {found.words()}", flush=True
            )
    return int(bool(found.suspect or found.refused))


def _clean(found: Asked, least: int) -> bool:
    return found.times >= least and not found.suspect and not found.refused


def _until(least: int, registry: Registry, host: Host, operators: tuple[str, ...]) -> Asked:
    """At least so many times of honest implementations: every operator's C++ kernels and PyTorch, one shape after
    another, verified in the first round.
    """
    found, proven = Asked(), {}
    for _ in range(ROUNDS):
        for name in operators:
            if found.times < least:
                _bench(found, proven, registry, host, name)
    return found


def _bench(found: Asked, proven: dict[VerifiedKey, Pass], registry: Registry, host: Host, name: str) -> None:
    from opforge.core.verdict import Pass, Unsupported
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


if __name__ == "__main__":
    sys.exit(main())
