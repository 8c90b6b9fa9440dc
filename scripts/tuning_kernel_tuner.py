"""Kernel Tuner's strategies over the same spaces, in its simulation mode, for scripts/tuning.py --against.

    python scripts/tuning_kernel_tuner.py FOLDER OUT.json [--seeds 100] [--strategies a,b]

Needs kernel_tuner (tried with 1.5.0) in the Python that runs it, which is no dependency of opforge: make one with
`python -m venv other && other/bin/pip install kernel_tuner`, and run this with `PYTHONPATH=src other/bin/python`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import tempfile
import time
import warnings
from pathlib import Path

import kernel_tuner
import numpy as np
from constraint import FunctionConstraint

from opforge.tuning.replay import MeasuredSpace, measured_spaces

AFTER = (10, 20, 50, 100)
STRATEGIES = (
    "dual_annealing",
    "adaptive_tabu_greywolf",
    "hybrid_vndx",
    "genetic_algorithm",
    "diff_evo",
    "greedy_ils",
    "simulated_annealing",
    "pso",
    "random_sample",
    "bayes_opt",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--evaluations", type=int, default=max(AFTER))
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    spaces = measured_spaces(options.folder)
    figures: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        caches = {space.name: _cache(space, Path(scratch)) for space in spaces}
        for name in options.strategies.split(","):
            began = time.monotonic()
            figures[name] = {
                space.name: _fractions(space, caches[space.name], name, options.seeds, options.evaluations)
                for space in spaces
            }
            means = np.mean(list(figures[name].values()), axis=0)
            print(f"{name:24}", *(f"{value:.3f}" for value in means), f"({time.monotonic() - began:.0f} s)", flush=True)
            options.out.write_text(json.dumps(figures, indent=1))


def _cache(space: MeasuredSpace, folder: Path) -> Path:
    """The space as the cache file that simulation mode reads."""
    names = [name for name, _ in space.legal.configs[0].values]
    points = {}
    for config, seconds in zip(space.legal.configs, space.seconds, strict=True):
        values = config.as_dict()
        result = dict(values)
        result["time"] = 1e3 * float(seconds) if np.isfinite(seconds) else "RuntimeFailedConfig"
        if np.isfinite(seconds):
            result["times"] = [result["time"]]
        result |= dict.fromkeys(("compile_time", "verification_time", "benchmark_time", "strategy_time"), 0.0)
        result |= {"framework_time": 0.0, "timestamp": "2026-01-01 00:00:00+00:00"}
        points[",".join(str(values[name]) for name in names)] = result
    file = folder / f"{space.name}.json"
    body = {
        "device_name": space.device,
        "kernel_name": space.kernel,
        "problem_size": [1, 1],
        "tune_params_keys": names,
        "tune_params": {name: list(values) for name, values in zip(names, space.legal.values, strict=True)},
        "objective": "time",
        "cache": points,
    }
    file.write_text(json.dumps(body))
    return file


def _fractions(space: MeasuredSpace, cache: Path, name: str, seeds: int, evaluations: int) -> list[float]:
    """Mean over seeds of the fraction of the optimum after each of AFTER unique evaluations."""
    names = [parameter for parameter, _ in space.legal.configs[0].values]
    legal = {tuple(config.as_dict()[parameter] for parameter in names) for config in space.legal.configs}
    curves = []
    for seed in range(seeds):
        random.seed(seed)
        np.random.seed(seed)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            results, _ = kernel_tuner.tune_kernel(
                space.kernel,
                "__global__ void " + space.kernel + "() {}",
                (1, 1),
                [],
                {parameter: list(values) for parameter, values in zip(names, space.legal.values, strict=True)},
                restrictions=[FunctionConstraint(lambda *values: values in legal)],
                strategy=name,
                strategy_options={"max_fevals": evaluations},
                simulation_mode=True,
                cache=str(cache),
                lang="CUDA",
                block_size_names=["block_size_x"],
                verify=None,
                quiet=True,
                seed=seed,
            )
        seen: set[tuple[object, ...]] = set()
        best, curve = float("inf"), []
        for result in results:
            point = tuple(result[parameter] for parameter in names)
            if point in seen:
                continue
            seen.add(point)
            if isinstance(result["time"], float):
                best = min(best, result["time"] / 1e3)
            curve.append(space.best_s / best)
        curve += curve[-1:] * (evaluations - len(curve))
        curves.append([curve[count - 1] for count in AFTER if count <= evaluations])
    return [float(value) for value in np.mean(curves, axis=0)]


if __name__ == "__main__":
    main()
