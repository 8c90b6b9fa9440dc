"""What to try against a bottleneck, each with the command that tries it."""

from __future__ import annotations

from collections.abc import Mapping

from opforge.core.definition.device import DeviceSpec
from opforge.core.definition.implementation import Implementation
from opforge.core.evidence.diagnosis import (
    ARITHMETIC,
    CACHE,
    INDEXING,
    MEMORY,
    OCCUPANCY,
    OVERHEAD,
    ROOF,
    SCALAR,
    SPILLS,
    UNKNOWN,
    WRONG,
    Direction,
)
from opforge.core.language import units
from opforge.diagnose.refusals import Refusal

WHY_TUNE = {
    SPILLS: "smaller tiles or fewer elements a thread keep values in registers",
    OCCUPANCY: "smaller tiles and other numbers of warps let more blocks be resident",
    CACHE: "another size or order of tiles meets what is in the cache again",
    MEMORY: "more bytes under way at once: wider accesses, other tiles, another number of threads or warps",
    ARITHMETIC: "tiles of another shape raise the work done for each operand that is loaded",
    OVERHEAD: "fewer, larger pieces of work cost less to start",
    SCALAR: "other choices of its space are compiled to other code",
    INDEXING: "longer parts of a row need fewer divisions",
    ROOF: "what is left, at most",
    UNKNOWN: "a search needs no roof",
}

WHY_OPTIMIZE = {
    SPILLS: "rules halve the tile and the rows of a program, one at a time",
    OCCUPANCY: "rules change warps and tile, verify, and keep what is faster",
    CACHE: "rules change what a program reads again",
    MEMORY: "rules change vector width, stores past the cache, grain of the threads",
    ARITHMETIC: "rules change the width of the arithmetic and how many sums run side by side",
    OVERHEAD: "rules change from which size on threads are started",
    SCALAR: "rules compute in registers where it was done element by element",
    INDEXING: "rules walk rows and columns where one index was divided",
}


def directions(
    bottleneck: str,
    implementation: Implementation,
    workload: str,
    dtype: str,
    *,
    rivals: Mapping[str, float],
    generated: bool,
    device: DeviceSpec,
    refused: Refusal | None = None,
) -> tuple[Direction, ...]:
    """Two directions at least, the likeliest first. rivals: implementations that were faster here, with their seconds;
    refused: what a compiler or a launch said, where nothing could be run.

    The commands stand for an `opforge` that finds the operator: `--home` goes before the verb.
    """
    name, operator = implementation.name, implementation.operator
    here = f"--workload {workload} --dtype {dtype}"
    only = f"{operator} --implementation {name} {here}"
    found: list[Direction] = []
    if bottleneck == WRONG and refused is not None:
        narrower = f"opforge tune {only}" if refused.tunable and implementation.space else ""
        return (
            Direction(
                what=refused.remedy,
                why=f"likely {refused.cause}",
                command=narrower or f"opforge verify {operator} --implementation {name} --dtype {dtype} --quick",
            ),
            Direction(
                what="registers, shared memory and the compiler's words, without running it",
                why="what is refused here may fit another target",
                command=f"opforge inspect {operator} {name} --dtype {dtype} --workload {workload}",
            )
            if implementation.backend in ("triton", "cuda", "tilelang", "cpp")
            else Direction(
                what="compare with the reference in PyTorch",
                why="it says which answer is wanted",
                command=f"opforge show {operator} --source",
            ),
        )
    if bottleneck == WRONG:
        return (
            Direction(
                what="see the first wrong element and its likely cause",
                why="accuracy comes first: nothing that is wrong is timed",
                command=f"opforge verify {operator} --implementation {name} --dtype {dtype}",
            ),
            Direction(
                what="compare with the reference in PyTorch",
                why="it says which answer is wanted",
                command=f"opforge show {operator} --source",
            ),
        )
    if generated and bottleneck in WHY_OPTIMIZE:
        found.append(
            Direction(
                what="rounds of verified changes to the generated code",
                why=WHY_OPTIMIZE[bottleneck],
                command=f"opforge optimize {only}",
            )
        )
    if implementation.space:
        found.append(
            Direction(
                what=f"search its space ({', '.join(implementation.space)})",
                why=WHY_TUNE[bottleneck],
                command=f"opforge tune {only}",
            )
        )
    if rivals:
        rival = min(rivals, key=lambda key: rivals[key])
        found.append(
            Direction(
                what=f"look at what {rival} does, and measure both interleaved",
                why=f"it took {units.seconds(rivals[rival])} here",
                command=f"opforge compare {operator}:{name} {operator}:{rival} {here}",
            )
        )
    if bottleneck in (SPILLS, OCCUPANCY, CACHE) and device.kind != "cpu":
        found.append(
            Direction(
                what="registers, shared memory and residency for other targets",
                why="the same code may fit another chip: then its tile is what is too large",
                command=f"opforge inspect {operator} {name} --targets all --dtype {dtype} --workload {workload}",
            )
        )
    if bottleneck == OVERHEAD:
        found.append(
            Direction(
                what="a larger shape",
                why="if the time hardly grows, the call is the cost and not the work",
                command=f"opforge sweep {operator} --implementation {name} --dtype {dtype}",
            )
        )
    if bottleneck == UNKNOWN:
        found.append(Direction(what="measure the device", why="rates set the roof", command="opforge machine"))
    # these apply to any kernel
    found += [
        Direction(
            what="every implementation of the operator side by side",
            why="another idea may have passed here already",
            command=f"opforge bench {operator} {here}",
        ),
        Direction(
            what="the time over the size of the problem",
            why="a step shows where a cache ends or threads begin",
            command=f"opforge sweep {operator} --implementation {name} --dtype {dtype}",
        ),
    ]
    unique = {direction.command: direction for direction in reversed(found)}
    return tuple(reversed(unique.values()))
