"""Times twenty kernels from about 2 us to 2 ms by events, CUDA graph and CUPTI, and prints the table for docs/timing.md.

python scripts/clocks.py      on a machine with an NVIDIA GPU
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))


def main() -> int:
    """The table on standard output; 3 without a GPU, 1 where the cold cache is not cold."""
    import torch

    from opforge.core import units
    from opforge.runner.device_clocks import ClockUnfit, captured, cold_probe, cupti_samples, event_samples, graph_samples
    from opforge.timing.timers import Trial, choose

    if not torch.cuda.is_available():
        print("clocks: torch sees no CUDA device here; run this on a machine with an NVIDIA GPU", file=sys.stderr)
        return 3
    device = torch.device("cuda")
    print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}\n")
    print("| kernel | events | graph | CUPTI | chosen |\n| --- | ---: | ---: | ---: | --- |")
    sizes = [1 << power for power in range(12, 30, 2)] + [3 << 28]
    for kind in ("copy", "row sum"):
        for size in sizes:
            x = torch.ones(size // 4, dtype=torch.float32, device=device).view(-1, 256)
            out = torch.empty_like(x) if kind == "copy" else torch.empty(x.shape[0], device=device)

            def run(kind: str = kind, x: torch.Tensor = x, out: torch.Tensor = out) -> None:
                if kind == "copy":
                    out.copy_(x)
                else:
                    torch.sum(x, dim=1, out=out)

            for _ in range(3):
                run()
            torch.cuda.synchronize()
            batch = max(1, min(200, round(1e-3 / (median(event_samples(run, 10, 5, None)) + 1e-9))))
            trials = {"cuda_event": Trial(median_s=median(event_samples(run, batch, 20, None)))}
            for name in ("cuda_graph", "cupti"):
                try:
                    samples = cupti_samples(run, batch, 20, None) if name == "cupti" else graph_samples(captured(run, batch), batch, 20, None)
                    trials[name] = Trial(median_s=median(samples))
                except ClockUnfit as error:
                    trials[name] = Trial(median_s=None, reason=str(error))
            choice = choose(trials)
            shown = [units.seconds(trial.median_s) if (trial := trials[name]).median_s is not None else "unfit" for name in ("cuda_event", "cuda_graph", "cupti")]
            print(f"| {kind} of {units.size(size)} | {' | '.join(shown)} | {choice if isinstance(choice, str) else choice.timer} |", flush=True)
    warm, cold = cold_probe(device)
    achieved = cold > 1.15 * warm
    print(f"\ncold-cache self-test: {units.seconds(warm)} warm, {units.seconds(cold)} after the flush: {'cold is cold' if achieved else 'cold not achieved'}")
    return int(not achieved)


if __name__ == "__main__":
    sys.exit(main())
