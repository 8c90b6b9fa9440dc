"""Times twenty kernels from about 2 us to 2 ms by events, CUDA graph and CUPTI, and prints the table for
docs/timing.md.

python scripts/clocks.py      on a machine with an NVIDIA GPU

Single kernels that move memory, matrix products, and calls of four kernels: the last have gaps inside, which the clocks
see differently. Everything is timed warm, so that the clocks have the same work; the cold cache is put to the test at
the end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

Call = Callable[[], object]
SAMPLES = 15
SAMPLE_S = 1e-3
MOST_CALLS = 200


def kernels(device: Any) -> Iterator[tuple[str, Callable[[], Call]]]:
    """Twenty calls by name, each as its maker, so that no two hold their memory at once."""
    import torch

    from opforge.core.language import units

    def copy(size: int) -> Call:
        x = torch.ones(size // 4, device=device)
        out = torch.empty_like(x)
        return lambda: out.copy_(x)

    def row_sum(size: int) -> Call:
        x = torch.ones(size // 4096, 1024, device=device)
        out = torch.empty(x.shape[0], device=device)
        return lambda: torch.sum(x, dim=1, out=out)

    def product(side: int) -> Call:
        a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
        out = torch.empty_like(a)
        return lambda: torch.mm(a, b, out=out)

    def four(size: int) -> Call:
        x = torch.ones(size // 4, device=device)
        out = torch.empty_like(x)

        def call() -> None:
            torch.add(x, 1.0, out=out)
            for _ in range(3):
                torch.mul(out, 1.0, out=out)

        return call

    for power in (12, 16, 20, 22, 24, 26, 28, 32):
        yield f"copy of {units.size(1 << power)}", partial(copy, 1 << power)
    for power in (14, 22, 26, 30):
        yield f"row sums of {units.size(1 << power)}", partial(row_sum, 1 << power)
    for side in (256, 1024, 4096, 8192):
        yield f"matrix product, {side} cubed", partial(product, side)
    for power in (12, 22, 25, 28):
        yield f"four kernels on {units.size(1 << power)}", partial(four, 1 << power)


def main() -> int:
    """The table on standard output; 3 without a GPU, 1 where the cold cache is not cold."""
    import torch

    from opforge.core.evidence.timing import Untimed
    from opforge.core.language import units
    from opforge.runner.worker.device_clocks import (
        ClockUnfit,
        captured,
        cold_probe,
        cupti_samples,
        event_samples,
        graph_samples,
    )
    from opforge.runner.worker.sampling import launch_cost
    from opforge.timing.timers import TimerTrial, choose

    def replayed(run: Call, batch: int) -> list[float]:
        return graph_samples(captured(run, batch), batch, SAMPLES, None)

    if not torch.cuda.is_available():
        print("clocks: torch sees no CUDA device here; run this on a machine with an NVIDIA GPU", file=sys.stderr)
        return 3
    device = torch.device("cuda")
    print(
        f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}; warm, median of {SAMPLES} samples of "
        f"{units.seconds(SAMPLE_S)}\n"
    )
    print(
        "| call | events | graph | CUPTI | host's cost of a launch | chosen |\n| --- | ---: | ---: | ---: | ---: "
        "| --- |"
    )
    reasons: dict[str, None] = {}
    for name, make in kernels(device):
        run = make()
        for _ in range(3):
            run()
        torch.cuda.synchronize()
        batch = max(1, min(MOST_CALLS, round(SAMPLE_S / (median(event_samples(run, 10, 5, None)) + 1e-9))))
        trials: dict[str, TimerTrial] = {}
        ways: dict[str, Callable[[], list[float]]] = {
            "cuda_event": partial(event_samples, run, batch, SAMPLES, None),
            "cuda_graph": partial(replayed, run, batch),
            "cupti": partial(cupti_samples, run, batch, SAMPLES, None),
        }
        for timer, take in ways.items():
            try:
                trials[timer] = TimerTrial(median_s=median(take()))
            except ClockUnfit as error:
                trials[timer] = TimerTrial(median_s=None, reason=str(error))
                reasons[f"{timer}: {error}"] = None
        choice = choose(trials)
        shown = [units.seconds(trial.median_s) if trial.median_s is not None else "unfit" for trial in trials.values()]
        launch = median(launch_cost(run, 20, 5))
        print(
            f"| {name} | {' | '.join(shown)} | {units.seconds(launch)} | "
            f"{choice.reason if isinstance(choice, Untimed) else choice.timer} |",
            flush=True,
        )
        del run, ways
        torch.cuda.empty_cache()
    for reason in list(reasons)[:5]:
        print(f"unfit: {reason}")
    warm, cold = cold_probe(device)
    achieved = cold > 1.15 * warm
    print(
        f"\ncold-cache self-test: {units.seconds(warm)} warm, {units.seconds(cold)} after the flush: "
        f"{'cold is cold' if achieved else 'cold not achieved'}"
    )
    return int(not achieved)


if __name__ == "__main__":
    sys.exit(main())
