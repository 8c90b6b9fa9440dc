"""What a default verification costs, beside what it cost in another checkout of opforge:

    git worktree add /tmp/then 8a92ccb
    python scripts/verify_cost.py --then /tmp/then

Both run `opforge verify OPERATOR --backend BACKEND`, one after the other, in an order that changes, with this Python
and the same caches of compiled kernels each; a first run of each fills those and is not counted. A line for each pair:
seconds by the clock and of processors (those of all workers), the medians, and their ratio.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import geometric_mean, median

HERE = Path(__file__).resolve().parents[1]
PAIRS = (
    "softmax:cpp",
    "softmax:torch",
    "layernorm:cpp",
    "rmsnorm_backward:cpp",
    "matmul:cpp",
    "gelu:triton",
    "cross_entropy:torch",
    "transpose:cpp",
)
"""Of every kind: rows, gradients, products, elements, indices, layouts; native and interpreted."""
MOST = 1.25
"""What issue 20 allows: a default verification as a multiple of that at commit 8a92ccb."""


def main() -> int:
    """1 when the whole costs more than MOST times as much, by processor time."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--then", type=Path, required=True, help="a checkout of the commit to compare with")
    parser.add_argument("--pairs", nargs="*", default=list(PAIRS), help="OPERATOR:BACKEND")
    parser.add_argument("--dtype", default="", help="default: all of an operator")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    whole: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        sides = {"now": HERE, "then": asked.then.resolve()}
        for pair in asked.pairs:
            spent: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
            for number in range(asked.rounds + 1):
                for side in sorted(sides, reverse=bool(number % 2)):
                    seconds = verified(sides[side], pair, asked.dtype, Path(folder) / side)
                    if number:
                        spent[side].append(seconds)
            wall, processor = (
                [median(times[at] for times in spent[side]) for side in ("now", "then")] for at in (0, 1)
            )
            whole.append((wall[0] / wall[1], processor[0] / processor[1]))
            print(
                f"{pair:<24} {wall[0]:6.1f} s now, {wall[1]:6.1f} then: {whole[-1][0]:.2f}   "
                f"processors {processor[0]:6.1f} s now, {processor[1]:6.1f} then: {whole[-1][1]:.2f}",
                flush=True,
            )
    wall_ratio, ratio = (geometric_mean(ratios) for ratios in zip(*whole, strict=True))
    print(
        f"a default verification takes {wall_ratio:.2f} times as long, {ratio:.2f} times by processors; at most {MOST}"
    )
    return int(ratio > MOST)


def verified(checkout: Path, pair: str, dtype: str, folder: Path) -> tuple[float, float]:
    """Seconds by the clock and of processors that one verification takes. Raises CalledProcessError where it has not
    run to its end.
    """
    operator, _, backend = pair.partition(":")
    folder.mkdir(exist_ok=True)
    words = ["-m", "opforge", "--store", str(folder / "store.sqlite"), "verify", operator, "--backend", backend]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "XDG_CACHE_HOME": str(folder / "cache")}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [sys.executable, *words, *(["--dtype", dtype] if dtype else [])],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        raise subprocess.CalledProcessError(done.returncode, words, done.stdout, done.stderr)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main())
