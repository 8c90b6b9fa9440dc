"""Can a reader find where a line lives, with docs/map.md and the README alone? Twenty lines drawn, guessed, scored.

    python scripts/reader_test.py draw --seed 7 > lines.txt        # numbered lines, without their places
    python scripts/reader_test.py score --seed 7 guesses.txt       # one guess a line: a path, as the map writes it

A guess is a hit when it names the one file: `timing/measure`, `src/opforge/timing/measure.py` and `gemm/mma.h` are read
alike. Lines of 25 characters or more are drawn from every source file of src/opforge; imports, comments and brackets
say nothing of a place and are left out, and so are lines that stand in several files.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = (".py", ".h", ".cu", ".cpp", ".j2", ".css", ".txt")
LEAST = 25
"""Characters of a line that may be drawn: shorter ones (`return found`) could stand anywhere."""
WANTED = 16
"""Hits of 20 that a new reader should have."""
TRIVIAL = re.compile(r"(?:import |from \S+ import|#include|#|//|/\*|\*|\"\"\"|@|[\W_]*$)")


def lines() -> list[tuple[str, str]]:
    """(line, path from src/opforge) of every line that may be drawn, in the order of the tree."""
    listed = subprocess.run(
        ["git", "ls-files", "src/opforge"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found = [
        (line.strip(), name.removeprefix("src/opforge/"))
        for name in sorted(listed)
        if name.endswith(SUFFIXES)
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines()
        if len(line.strip()) >= LEAST and not TRIVIAL.match(line.strip())
    ]
    places = Counter(line for line, _ in set(found))
    return [(line, name) for line, name in found if places[line] == 1]


def draw(seed: int, count: int) -> list[tuple[str, str]]:
    """Lines and places, the same for the same seed and tree."""
    return random.Random(seed).sample(lines(), count)


def is_hit(guess: str, place: str) -> bool:
    """Whether a guess names the file.

    >>> is_hit("timing/measure", "timing/measure.py"), is_hit("gemm/mma.h", "device/include/opforge/gemm/mma.h")
    (True, True)
    >>> is_hit("measure", "timing/measure.py"), is_hit("", "timing/measure.py")
    (False, False)
    """
    guess = guess.strip().strip("`").removeprefix("src/opforge/")
    wholes = (place, place.rsplit(".", 1)[0], re.sub(r"^(device/include/opforge/|ops/\w+/)", "", place))
    return guess in wholes


def main() -> int:
    """Print the lines, or the table of a reader's guesses. Exit code 1 below WANTED hits of 20."""
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("what", choices=("draw", "score"))
    options.add_argument("guesses", nargs="?", type=Path)
    options.add_argument("--seed", type=int, required=True)
    options.add_argument("--count", type=int, default=20)
    given = options.parse_intermixed_args()
    drawn = draw(given.seed, given.count)
    if given.what == "draw":
        for number, (line, _) in enumerate(drawn, start=1):
            print(f"{number}. {line}")
        return 0
    if given.guesses is None:
        options.error("score needs a file with one guess a line")
    guesses = [re.sub(r"^\d+\.\s*", "", text) for text in given.guesses.read_text(encoding="utf-8").splitlines()]
    if len(guesses) != len(drawn):
        options.error(f"{given.guesses} has {len(guesses)} lines; {len(drawn)} were drawn")
    print("| line | guess | place | hit |\n|---|---|---|---|")
    hits = 0
    for (line, place), guess in zip(drawn, guesses, strict=True):
        hit = is_hit(guess, place)
        hits += hit
        shown = line.replace("|", "\\|")
        print(f"| `{shown[:90]}` | `{guess.strip()}` | `{place}` | {'yes' if hit else 'no'} |")
    print(f"\n{hits} of {len(drawn)}, seed {given.seed}")
    return int(hits * 20 < WANTED * len(drawn))


if __name__ == "__main__":
    sys.exit(main())
