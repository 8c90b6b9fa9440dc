"""Whether `opforge.ops` is slower than PyTorch's own function at products where both are near the roof: by pairs.

python scripts/beside_torch.py                 eight bfloat16 products, on a GPU
python scripts/beside_torch.py --json FILE

At such shapes a GPU runs at its power limit, and its clock moves by 5 % with what ran a moment before: two medians,
each of samples beside other kernels, have said 0.94 and 1.03 of one shape. So the two sides alone are called in turn,
in random order within each pair, and the ratio is taken in each pair (opforge.timing.paired_statistics). PyTorch
against itself stands beside it: what the method says where there is nothing to say. Exit code 1 where a call surely
takes more than 3 % longer (99 %, all looks together).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

ROOM = 0.03
SAMPLE_S = 4e-3
"""Seconds of calls in a sample: an event's few microseconds are a thousandth of it."""
WARM_S = 0.5
"""Seconds of calls before the first pair: the clock of a GPU at its power limit has come down by then."""
SHAPES: tuple[tuple[dict[str, int], str], ...] = (
    ({"m": 16384, "n": 4096, "k": 4096}, "contiguous"),
    ({"m": 4096, "n": 16384, "k": 4096}, "contiguous"),
    ({"m": 8192, "n": 8192, "k": 8192}, "contiguous"),
    ({"m": 4096, "n": 4096, "k": 4096}, "contiguous"),
    ({"m": 2048, "n": 2048, "k": 2048}, "contiguous"),
    ({"m": 128, "n": 8192, "k": 28672}, "contiguous"),
    ({"m": 3000, "n": 5000, "k": 7000}, "contiguous transposed"),
    ({"m": 4097, "n": 4095, "k": 4093}, "contiguous"),
)


def pairs_of(one: Callable[[int], Any], other: Callable[[int], Any], looks: Sequence[int], band: float) -> Any:
    """The Comparison of two calls (of a number, by which each takes its inputs in turn), on a GPU."""
    import torch

    from opforge.core.evidence.comparison import UNSURE
    from opforge.timing.paired_statistics import Rule, compare

    def timed(call: Callable[[int], Any], batch: int) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for step in range(batch):
            call(step)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / batch

    each = max(timed(call, 3) for call in (one, other))
    batch = max(1, math.ceil(SAMPLE_S / each))
    for _ in range(math.ceil(WARM_S / (2 * batch * each))):
        timed(one, batch), timed(other, batch)
    rule, draw = Rule(band=band, looks=tuple(looks)), random.Random(0)
    mine: list[float] = []
    theirs: list[float] = []
    for look in looks:
        while len(mine) < look:
            sides = [(one, mine), (other, theirs)]
            draw.shuffle(sides)
            for call, samples in sides:
                samples.append(timed(call, batch))
        found = compare("ops", "torch", mine, theirs, rule=rule)
        if found.outcome != UNSURE:
            break
    return found


def main() -> int:
    """What the words above say."""
    import direct
    import torch

    import opforge.ops as ops
    from opforge.core.evidence.comparison import SLOWER
    from opforge.registry import load

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dtype", default="bfloat16")
    given = parser.parse_args()
    operator = load().operator("matmul")
    rows: list[dict[str, Any]] = []
    for axes, layout in SHAPES:
        tensors = direct.tensors_for(operator, axes, given.dtype, operator.scalar_values({}), "cuda", layout)
        copies = direct.copies_of(tensors)
        chosen = ops.matmul.why(*tensors).implementation.name
        flops = operator.cost(axes, given.dtype, operator.scalar_values({})).flops

        def mine(step: int, copies: Any = copies) -> Any:
            return ops.matmul(*copies[step % len(copies)])

        def theirs(step: int, copies: Any = copies) -> Any:
            return torch.matmul(*copies[step % len(copies)])

        found = pairs_of(mine, theirs, (30, 60, 120), ROOM)
        itself = pairs_of(theirs, theirs, (30,), ROOM)
        speeds = [
            sorted(flops / value / 1e12 for value in samples) for samples in (found.samples_a_s, found.samples_b_s)
        ]
        rows.append(
            {
                "axes": axes, "layout": layout, "dtype": given.dtype, "chosen": chosen, "outcome": found.outcome,
                "ratio": found.ratio, "low": found.low, "high": found.high, "pairs": found.pairs,
                "itself": [itself.ratio, itself.low, itself.high],
                "ops_s": found.samples_a_s, "torch_s": found.samples_b_s,
            }
        )  # fmt: skip
        sizes = "×".join(map(str, axes.values()))
        said = [f"{values[len(values) // 2]:.0f} ({values[0]:.0f} to {values[-1]:.0f})" for values in speeds]
        print(
            f"matmul {given.dtype} {sizes}{'' if layout == 'contiguous' else ' ' + layout}: ops → {chosen} takes "
            f"{found.ratio:.3f} ({found.low:.3f} to {found.high:.3f}) of torch's time, {found.pairs} pairs: "
            f"{found.outcome}; TFLOP/s {said[0]} and {said[1]}; torch beside itself {itself.ratio:.3f} "
            f"({itself.low:.3f} to {itself.high:.3f})",
            flush=True,
        )
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1))
    slower = [row for row in rows if row["outcome"] == SLOWER]
    worst = max(row["ratio"] for row in rows)
    print(f"{len(slower)} of {len(rows)} surely slower by more than {ROOM:.0%}; the worst ratio is {worst:.3f}")
    return int(bool(slower))


if __name__ == "__main__":
    sys.exit(main())
