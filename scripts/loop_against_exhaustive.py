"""Three generated operators from a poor start: how near the loop comes to the best of an exhaustive search.

    python scripts/loop_against_exhaustive.py FOLDER start        # generate them, each choice at its worst
    python scripts/loop_against_exhaustive.py FOLDER loops        # opforge optimize, at most five rounds each
    python scripts/loop_against_exhaustive.py FOLDER exhaustive   # opforge tune over every point of the same space
    python scripts/loop_against_exhaustive.py FOLDER compare      # the loop's best against that, in pairs

FOLDER gets the operators, a store, and a file for each step. About twenty minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

OPERATORS = {
    "gated_bias": ["--formula", "out = silu(x[*lead, cols] * scale[cols] + bias[cols])"],
    "clipped_tanh": [
        "--formula", "d = x - y; out = where(d < alpha, d * tanh(y), exp(-abs(x)))", "--parameter", "alpha=0.5",
    ],
    "row_norm": [
        "--formula", "y = (x[*lead, cols] - mean(x)) * rsqrt(var(x) + eps) * w[cols]", "--parameter", "eps=1e-5",
    ],
}  # fmt: skip
DTYPE = "float32"


def opforge(folder: Path, *words: str) -> str:
    """What the command prints; its own progress goes through."""
    environment = {**os.environ, "OPFORGE_STORE": str(folder / "records.sqlite")}
    command = [sys.executable, "-m", "opforge", "--home", str(folder / "home"), *words]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def kernel(folder: Path, name: str) -> str:
    """The name of the operator's C++ kernel."""
    return next((folder / "home" / name).glob("cpp_*.cpp")).stem


def start(folder: Path) -> None:
    """Generate the operators, and write the poorest default of its space into each C++ kernel."""
    from opforge.forge.loop.choices import POOR, opened

    (folder / "home").mkdir(parents=True)
    for name, words in OPERATORS.items():
        opforge(folder, "new", name, "--home", str(folder / "home"), *words)
        path = folder / "home" / name / f"{kernel(folder, name)}.cpp"
        path.write_text(opened(path.read_text(encoding="utf-8"), POOR), encoding="utf-8")


def loops(folder: Path) -> None:
    """At most five rounds of rules each. The target is out of reach, so that none ends early."""
    for name in OPERATORS:
        print(opforge(folder, "optimize", name, "--dtype", DTYPE, "--device", "cpu", "--target", "1000"))


def exhaustive(folder: Path) -> None:
    """Every point of the space of each kernel."""
    for name in OPERATORS:
        words = ["--dtype", DTYPE, "--device", "cpu", "--strategy", "exhaustive", "--trials", "0", "--dry-run"]
        said = opforge(
            folder, "tune", name, "--implementation", kernel(folder, name), *words, "--cold", "--fresh", "--json"
        )
        (folder / f"{name}.exhaustive.json").write_text(said, encoding="utf-8")


def compare(folder: Path) -> None:
    """The loop's best against the exhaustive search's, in pairs."""
    for name in OPERATORS:
        best = json.loads((folder / f"{name}.exhaustive.json").read_text(encoding="utf-8"))["tuned"][0]["config"]
        point = ",".join(f"{key}={value}" for key, value in best.items())
        side = f"{name}:{kernel(folder, name)}"
        print(f"{name}: exhaustive best {point}")
        print(opforge(folder, "compare", side, f"{side}[{point}]", "--dtype", DTYPE, "--device", "cpu"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("step", choices=("start", "loops", "exhaustive", "compare"))
    given = parser.parse_args()
    {"start": start, "loops": loops, "exhaustive": exhaustive, "compare": compare}[given.step](given.folder.resolve())
