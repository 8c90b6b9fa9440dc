"""Three generated operators from a poor start: how near the loop comes to the best of an exhaustive search.

    python scripts/loop_against_exhaustive.py FOLDER start            # generate them, each choice at its worst
    python scripts/loop_against_exhaustive.py FOLDER loop NAME        # opforge optimize, at most five rounds
    python scripts/loop_against_exhaustive.py FOLDER search NAME      # opforge tune over every point of the same space
    python scripts/loop_against_exhaustive.py FOLDER meet NAME        # where the loop ended against the search's best
    python scripts/loop_against_exhaustive.py FOLDER logs DOCS        # the loops' logs, and a table of the meetings

A step that was cut short goes on when it is given again, and one that is done does nothing: each may have a few minutes
of a quiet machine of its own. A search ranks its points at different moments, and the luckiest of forty looks best.
So its few best ones meet the loop's point in pairs, and the nearest figure is that of the fastest of them.
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
FEW = 3
"""Points of the search, its winner among them, that meet the loop's."""
PATIENCE = os.environ.get("PATIENCE", "60")
"""Seconds that a loop may wait for a still machine; 0 where it has the processors by its priority."""
WITHIN = 1.1
"""Of the time of the best: the loop's point is near enough."""


def opforge(folder: Path, *words: str) -> str:
    """What the command prints; its own progress goes through."""
    environment = {**os.environ, "OPFORGE_STORE": str(folder / "records.sqlite")}
    command = [sys.executable, "-m", "opforge", "--home", str(folder / "home"), *words]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def kernel(folder: Path, name: str) -> str:
    """The name of the operator's C++ kernel."""
    return next((folder / "home" / name).glob("cpp_*.cpp")).stem


def written(path: Path, content: object) -> None:
    """Keep what a step came to, with the load of the machine then."""
    path.write_text(json.dumps({"load": os.getloadavg()[0], "found": content}, indent=1), encoding="utf-8")


def found(path: Path) -> object:
    """What a step came to; None where it was not done yet."""
    return json.loads(path.read_text(encoding="utf-8"))["found"] if path.exists() else None


def start(folder: Path) -> None:
    """Generate the operators, and write the poorest default of its space into each C++ kernel."""
    from opforge.forge.loop.choices import POOR, opened

    (folder / "home").mkdir(parents=True)
    for name, words in OPERATORS.items():
        opforge(folder, "new", name, "--home", str(folder / "home"), *words)
        path = folder / "home" / name / f"{kernel(folder, name)}.cpp"
        path.write_text(opened(path.read_text(encoding="utf-8"), POOR), encoding="utf-8")


def loop(folder: Path, name: str) -> None:
    """At most five rounds of rules. The target is out of reach, so that it does not end early."""
    path = folder / f"{name}.loop.json"
    if found(path) is None:
        words = ["--dtype", DTYPE, "--device", "cpu", "--target", "1000", "--patience", PATIENCE]
        said = opforge(folder, "optimize", name, *words)
        written(path, said.splitlines())
    print("\n".join(found(path)))


def search(folder: Path, name: str) -> None:
    """Every point of the space of the kernel, the fastest first."""
    from opforge.store import Store

    path = folder / f"{name}.search.json"
    if found(path) is None:
        words = ["--dtype", DTYPE, "--device", "cpu", "--strategy", "exhaustive", "--trials", "0", "--dry-run"]
        said = json.loads(
            opforge(folder, "tune", name, "--implementation", kernel(folder, name), *words, "--cold", "--json")
        )
        with Store.open(folder / "records.sqlite") as store:
            # of the runs that were cut short too
            trials = [one for one in store.query(operator=name) if one.trial and one.timing is not None]
        ranked = [
            (one.timing.median_s, one.config.as_dict()) for one in sorted(trials, key=lambda one: one.timing.median_s)
        ]
        winner = said["tuned"][0]
        written(path, {"winner": winner["config"], "winner_s": winner["median_s"], "ranked": ranked})
    print(json.dumps(found(path), indent=1))


def meet(folder: Path, name: str) -> None:
    """The loop's point against each of the few best of the search, in pairs."""
    searched = found(folder / f"{name}.search.json")
    if not isinstance(searched, dict):
        sys.exit(f"{name} was not searched yet: python scripts/loop_against_exhaustive.py {folder} search {name}")
    points = [searched["winner"]]
    points += [config for _, config in searched["ranked"] if config != searched["winner"]][: FEW - 1]
    path = folder / f"{name}.meet.json"
    met = found(path) or []
    side = f"{name}:{kernel(folder, name)}"
    for config in points[len(met) :]:
        point = ",".join(f"{key}={value}" for key, value in config.items())
        said = json.loads(
            opforge(folder, "compare", side, f"{side}[{point}]", "--dtype", DTYPE, "--device", "cpu", "--json")
        )
        (one,) = said["comparisons"]
        met.append({"point": point, **{key: one[key] for key in ("outcome", "ratio", "low", "high")}})
        written(path, met)
    print(verdict(name, met))


def verdict(name: str, met: list[dict[str, object]]) -> str:
    """A line of a table: the loop's time over that of each point, and whether all are near."""
    worst = max(met, key=lambda one: one["ratio"])
    near = "yes" if worst["ratio"] <= WITHIN else "no"
    told = f"{worst['ratio']:.2f} ({worst['low']:.2f} to {worst['high']:.2f})"
    return f"| {name} | {told} | `{worst['point']}` | {near} |"


def logs(folder: Path, docs: Path) -> None:
    """The logs of the loops, and the table."""
    for name in OPERATORS:
        for language, suffix in (("en", ""), ("zh", ".zh-CN")):
            opforge(folder, "log", name, "--lang", language, "--out", str(docs / f"{name}{suffix}.md"))
        print(verdict(name, found(folder / f"{name}.meet.json")))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("step", choices=("start", "loop", "search", "meet", "logs"))
    parser.add_argument("of", nargs="?", default="", metavar="NAME", help="an operator; of logs: the folder of docs")
    given = parser.parse_args()
    where = given.folder.resolve()
    if given.step == "start":
        start(where)
    elif given.step == "logs":
        logs(where, Path(given.of))
    elif given.of not in OPERATORS:
        parser.error(f"name one of {', '.join(OPERATORS)}")
    else:
        {"loop": loop, "search": search, "meet": meet}[given.step](where, given.of)
