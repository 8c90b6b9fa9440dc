"""`make tuning`: how good the search is, replayed over spaces that were measured whole. No device is needed.

    python scripts/tuning.py [FOLDER] [--seeds 100] [--against kernel_tuner.json]

FOLDER (or $OPFORGE_TUNING_SPACES) holds NAME@DEVICE.csv or .csv.gz; public ones: github.com/AutoTuningAssociation
(benchmark_hub), doi:10.5281/zenodo.15364124. Without it two modelled spaces are replayed, which show that it works.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

# many small matrices: threads of a BLAS would only wait for each other. Set before numpy is loaded
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from tuning_elsewhere import elsewhere_figures
from tuning_recommend import recommend_figures

from opforge.tuning.modelled import modelled_spaces
from opforge.tuning.replay import MeasuredSpace, Replayed, measured_spaces, replay, trace_of
from opforge.tuning.strategies import NAMES, Trace, strategy

AFTER = (10, 20, 50, 100)
TOGETHER = 4
Runs = dict[str, list[Replayed]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default=os.environ.get("OPFORGE_TUNING_SPACES"))
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--evaluations", type=int, default=max(AFTER))
    parser.add_argument("--strategies", default=",".join(name for name in NAMES if name != "exhaustive"))
    parser.add_argument("--against", type=Path, help="what scripts/tuning_kernel_tuner.py wrote for the same spaces")
    parser.add_argument("--json", type=Path, help="write the figures of each space here too")
    options = parser.parse_args()
    spaces = measured_spaces(Path(options.folder)) if options.folder else modelled_spaces()
    print(
        f"{len(spaces)} {'measured' if options.folder else 'modelled'} spaces, {options.seeds} seeds, fraction of the"
    )
    print("optimum after so many evaluations (failures count), mean over spaces; evaluations to 95 %: median, p75.")
    print(f"{'':24}{''.join(f'{after:>8}' for after in AFTER)}{'median':>8}{'p75':>6}{'own ms':>8}", flush=True)
    figures: dict[str, dict[str, list[float]]] = {}
    cold: Runs = {}
    for name in options.strategies.split(","):

        def search(space: MeasuredSpace, seed: int, name: str = name) -> Replayed:
            made = strategy(name, space.legal, f"{seed}", trials=options.evaluations)
            return replay(space, made, options.evaluations)

        runs = _runs(spaces, options.seeds, search)
        figures[name] = _told(name, runs)
        cold = runs if name == "model" else cold
    if cold:

        def warm(space: MeasuredSpace, seed: int) -> Replayed:
            made = strategy("model", space.legal, f"{seed}", traces=_traces(space, spaces, cold, seed))
            return replay(space, made, options.evaluations)

        def batches(space: MeasuredSpace, seed: int) -> Replayed:
            return replay(space, strategy("model", space.legal, f"{seed}"), options.evaluations, TOGETHER)

        related = [
            space for space in spaces if any(space is not item and space.kernel == item.kernel for item in spaces)
        ]
        if related:
            runs = _runs(related, options.seeds, warm)
            figures["warm"] = _told("model, warm", runs)
            first = {name: float(np.mean([run.fractions[0] for run in each])) for name, each in runs.items()}
            least = min(first, key=lambda name: first[name])
            print(f"  predicted from the other devices alone: {np.mean(list(first.values())):.3f} of the optimum,")
            print(f"  least on {least}: {first[least]:.3f}", flush=True)
            elsewhere_figures(related, first)
        figures["batches"] = _told(f"model, {TOGETHER} at once", _runs(spaces, options.seeds, batches))
        if options.against:
            _compared(figures["model"], json.loads(options.against.read_text()))
        for kernel in sorted({space.kernel for space in spaces}):
            means = np.mean([figures["model"][space.name] for space in spaces if space.kernel == kernel], axis=0)
            print(f"  model, {kernel:24}{''.join(f'{value:8.3f}' for value in means)}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


def _runs(spaces: list[MeasuredSpace], seeds: int, search: Callable[[MeasuredSpace, int], Replayed]) -> Runs:
    return {space.name: [search(space, seed) for seed in range(seeds)] for space in spaces}


def _traces(space: MeasuredSpace, spaces: list[MeasuredSpace], cold: Runs, seed: int) -> tuple[Trace, ...]:
    """What cold searches on all other devices saw of this kernel, each with another seed."""
    others = [item for item in spaces if item.kernel == space.kernel and item is not space]
    return tuple(trace_of(item, cold[item.name][(seed + 1) % len(cold[item.name])].asked) for item in others)


def _told(name: str, runs: Runs) -> dict[str, list[float]]:
    """Print a line, and return the fraction after each of AFTER for each space."""
    after = [count for count in AFTER if all(len(run.fractions) >= count for each in runs.values() for run in each)]
    table = {
        space: [float(np.mean([run.fractions[count - 1] for run in each])) for count in after]
        for space, each in runs.items()
    }
    means = "".join(f"{value:8.3f}" for value in np.mean(list(table.values()), axis=0))
    reached = np.array([run.evaluations_to(0.95) for each in runs.values() for run in each])
    # of those that never came there the quantile is no number
    median, third = (np.quantile(reached, share, method="higher") for share in (0.5, 0.75))
    own = 1e3 * np.mean([run.own_s for each in runs.values() for run in each])
    print(f"{name:24}{means}{median:8.0f}{third:6.0f}{own:8.1f}", flush=True)
    return table


def _compared(mine: dict[str, list[float]], theirs: dict[str, dict[str, list[float]]]) -> None:
    """Against another tuner's strategies, after 50 evaluations."""
    place = AFTER.index(50)
    means = {name: float(np.mean([each[space][place] for space in mine])) for name, each in theirs.items()}
    for name, mean in sorted(means.items(), key=lambda item: -item[1]):
        print(f"  {name:30} {mean:.3f}")
    best = max(means, key=lambda name: means[name])
    gaps = {space: mine[space][place] - theirs[best][space][place] for space in mine}
    least = min(gaps, key=lambda space: gaps[space])
    print(f"model against its best, {best}, after 50: {100 * float(np.mean(list(gaps.values()))):+.1f} points;")
    print(f"  least on {least}: {100 * gaps[least]:+.1f} points")


if __name__ == "__main__":
    began = time.monotonic()
    main()
    recommend_figures()
    print(f"({time.monotonic() - began:.0f} s)")
