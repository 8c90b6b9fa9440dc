"""The seeds' Broadcast on a GPU, from the seed's first parameters: tiles of 64 x 256, 8 warps, 3 stages, a 1-D grid.

    python scripts/broadcast_from_the_seed.py FOLDER                 # on the machine with the GPU; --limit: seconds
    python scripts/broadcast_from_the_seed.py FOLDER --device cpu    # the same steps with the C++ kernel, to try them

The operator is generated from examples/definitions/broadcast_bias.yaml, with a kernel in the seed's form beside the
generated ones. `opforge optimize` works on that one for at most five rounds. Then all implementations are timed side by
side, and the best of the loop meets the fastest of the others in pairs. FOLDER gets five small files, each as soon as
there is something to write: the log in English and in Chinese, the rounds as JSON, what was printed (said.txt), and
the kernel at the end. The page of all of it lies in FOLDER/page. The log is printed last, too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

OPERATOR, KERNEL = "broadcast_bias", "triton_seed"
DEFINITION = Path(__file__).resolve().parents[1] / "examples" / "definitions" / f"{OPERATOR}.yaml"
FIRST = {"BLOCK_M": 64, "BLOCK_N": 256, "GRID": 1, "num_warps": 8, "num_stages": 3}
DTYPE = "float16"
LIMIT_S = 300.0
"""Seconds for everything, by default: what is not begun by then is left out, and that is said. On an H200 the loop took
less than one minute."""
LOOP = 0.5
"""The share of it that the loop may take."""
BENCH_S = 60.0

SEED = f'''"""A tile of BLOCK_M rows and BLOCK_N columns per program, as the seed's Broadcast has it.

moves     (2 * rows + 1) * cols * itemsize bytes: the least possible
limits    with GRID 2 the second grid axis counts blocks of columns, and ends at 65535
"""

import triton
import triton.language as tl

from opforge.device.triton.blocks import load_once, store_once

SUPPORTS = {{"columns_fit_the_grid": "cols <= 65535 * 128"}}
SPACE = {{
    "BLOCK_M": (1, 4, 8, 16, 32, 64),
    "BLOCK_N": (128, 256, 512, 1024, 2048),
    "GRID": (1, 2),
    "num_warps": (2, 4, 8),
    "num_stages": (2, 3),
}}
LIMITS = {{
    "every_thread_has_an_element": "BLOCK_M * BLOCK_N >= 32 * num_warps",
    "fits_registers": "BLOCK_M * BLOCK_N <= 64 * 32 * num_warps",
}}
DEFAULT = {{{", ".join(f'"{name}": {value}' for name, value in FIRST.items())}}}


@triton.jit
def broadcast_tile(
    x_ptr, bias_ptr, out_ptr, rows, cols, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GRID: tl.constexpr
):
    if GRID == 2:
        down, across = tl.program_id(0), tl.program_id(1)
    else:
        blocks = tl.cdiv(cols, BLOCK_N)
        down, across = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    # int64: row * cols leaves int32 beyond 2^31 elements
    row = down.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    col = across * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    inside = (row < rows) & (col < cols)
    bias = load_once(bias_ptr + col, col < cols)  # [1, BLOCK_N], for all rows of the tile
    x = load_once(x_ptr + row * cols + col, inside)
    store_once(out_ptr + row * cols + col, x + bias, inside)


def launch(x, bias, out, *, BLOCK_M, BLOCK_N, GRID, num_warps, num_stages):
    if out.numel() == 0:
        return
    cols = out.shape[-1]
    rows = out.numel() // cols
    down, across = triton.cdiv(rows, BLOCK_M), triton.cdiv(cols, BLOCK_N)
    grid = (down, across) if GRID == 2 else (down * across,)
    broadcast_tile[grid](
        x,
        bias,
        out,
        rows,
        cols,
        BLOCK_M=BLOCK_M,
        BLOCK_N=BLOCK_N,
        GRID=GRID,
        num_warps=num_warps,
        num_stages=num_stages,
    )
'''


def made(folder: Path) -> Path:
    """The home with the operator in it."""
    from opforge.forge import generate, read_definition
    from opforge.forge.generate import More
    from opforge.registry import load

    home = folder / "home"
    generate(load(), read_definition(DEFINITION, OPERATOR), home, more=More(files={f"{KERNEL}.py": SEED}))
    return home


def main() -> int:
    """0 where the loop ended and its best was compared with the fastest of the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for everything (default: %(default)g)")
    given = parser.parse_args()
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise SystemExit(f"{folder} holds files already. Give a new folder.")
    # the home and the store stay outside: what comes back from another machine is few and small
    with tempfile.TemporaryDirectory(prefix="opforge-broadcast-") as scratch:
        return steps(folder, Path(scratch), given.device, given.limit)


def steps(folder: Path, scratch: Path, device: str, limit_s: float) -> int:
    """Everything, in `scratch`; what is to be kept goes to `folder`. The exit code."""
    began = time.monotonic()
    home = made(scratch)
    kernel = KERNEL if device == "cuda" else "cpp_rows"
    said: list[str] = []

    def left() -> float:
        return limit_s - (time.monotonic() - began)

    def tell(words: str) -> None:
        """Kept at once: a run that is cut off leaves what it had said."""
        said.append(words)
        (folder / "said.txt").write_text("\n".join(said), encoding="utf-8")

    def opforge(*words: str, seconds: float, good: tuple[int, ...] = (0,)) -> str | None:
        """What a command prints; None where there was no time for it, or its exit code is none of `good`."""
        told = f"$ opforge {' '.join(words)}"
        environment = {**os.environ, "OPFORGE_STORE": str(scratch / "records.sqlite")}
        if left() < 3:
            tell(f"{told}\nleft out: {limit_s:g} s were over\n")
            return None
        try:
            done = subprocess.run(
                [sys.executable, "-m", "opforge", "--home", str(home), *words],
                env=environment, capture_output=True, text=True, timeout=min(seconds, left()), check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            tell(f"{told}\ncut off: no time was left\n")
            return None
        shown = "" if "--json" in words else done.stdout
        tell(f"{told}\n{shown}{done.stderr if done.returncode else ''}\nexit code {done.returncode}\n")
        print(said[-1], flush=True)
        return done.stdout if done.returncode in good else None

    on = ["--dtype", DTYPE if device == "cuda" else "float32", "--device", device]
    workload = ["--workload", "large" if device == "cuda" else "laptop"]
    # near the roof the loop goes on while the baseline is faster
    over = ["--baseline", "torch_compile" if device == "cuda" else "torch_eager"]
    loop = opforge(
        "optimize", OPERATOR, "--implementation", kernel, *on, *workload, *over, "--rounds", "5", "--target", "1000",
        "--limit", f"{max(1.0, LOOP * limit_s - 30):g}", seconds=LOOP * limit_s,
    )  # fmt: skip
    for language in ("en", "zh"):
        opforge("log", OPERATOR, "--lang", language, "--out", str(folder / f"log.{language}.md"), seconds=10)
    source = next((home / OPERATOR).glob(f"{kernel}.*"))
    shutil.copy(source, folder / f"end_{source.name}")
    if rounds := opforge("log", OPERATOR, "--json", seconds=10):
        (folder / "rounds.json").write_text(rounds, encoding="utf-8")
    benched = opforge(
        "bench", OPERATOR, *on, *workload, "--quick", "--budget", "1", "--report", str(folder / "page"), "--json",
        seconds=BENCH_S, good=(0, 1),  # 1: one of them isn't accurate, which says nothing about the others' times
    )  # fmt: skip
    times = medians(json.loads(benched)) if benched else {}
    tell("\n".join(f"{name}: {seconds * 1e6:.2f} us" for name, seconds in times.items()))
    print(said[-1], flush=True)
    # who meets it in pairs: the fastest of the rest, and what everybody has where nothing was timed
    rival = next((name for name in times if name != kernel), "torch_eager")
    compared = opforge(
        "compare", f"{OPERATOR}:{kernel}", f"{OPERATOR}:{rival}", *on, *workload, "--budget", "2", seconds=90
    )
    log = folder / "log.en.md"
    print(log.read_text(encoding="utf-8")[-6000:] if log.exists() else "there is no log: see said.txt")
    tell(f"{time.monotonic() - began:.0f} s in all")
    print(said[-1])
    return int(loop is None or benched is None or compared is None)


def medians(records: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds of what was timed side by side, by implementation, the fastest first."""
    found = {one["implementation"]: median(one["timing"]["samples_s"]) for one in records if one["timing"]}
    return dict(sorted(found.items(), key=lambda item: item[1]))


if __name__ == "__main__":
    sys.exit(main())
