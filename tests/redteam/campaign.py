"""The whole campaign: runs every part, prints a table of counts against what they must reach."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.redteam import bugs, candidates, cheats, deaths, gpu_lanes, honest, hostile, masks, on_gpu, walls
from tests.redteam.by_family import Met, by_family

from opforge.runner.walls import sandbox
from opforge.walls import landlock

BUG_LIMIT_S = 5.0
CHEATS_LIMIT_S = 180.0
GPU_CHEATS_S = 170.0
GPU_LIMIT_S = 240.0
"""Nineteen cheats took 100 s; there are three times as many, most of them beside each other."""
LEFT = 1
"""Cheats of the white-box part that get through, as docs/isolation.md says."""


@dataclass(frozen=True, kw_only=True)
class Count:
    """One line of the table: what was counted, how many there are, how many must be."""

    what: str
    reached: float
    wanted: float
    most: bool = False

    @property
    def holds(self) -> bool:
        return self.reached <= self.wanted if self.most else self.reached >= self.wanted


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much to do. Quick is for every push, full for `make redteam`. `told`: a line for every cheat on a GPU, and
    not only
    for what falls short. `named`: only the cheats on a GPU whose names these patterns match; () for all. `masked`: the
    operators whose masks are taken away, and in which dtypes; () for all. `sent`: how many published exploits,
    own cheats and honest kernels are sent to the loop as candidates; `part`: which of them, where minutes are short."""

    one_cheat_per_guard: bool
    honest: int
    kinds: tuple[str, ...]
    hostile: tuple[str, ...]
    repeats: int
    sent: tuple[int, int, int] = (50, 56, 100)
    masked: tuple[str, ...] = ()
    masked_dtypes: tuple[str, ...] = ()
    told: bool = False
    named: tuple[str, ...] = ()
    part: candidates.Part = candidates.ALL


FULL = Plan(
    one_cheat_per_guard=False,
    honest=300,
    kinds=tuple(bugs.KINDS),
    hostile=(*hostile.AT_CALL, *hostile.AT_IMPORT),
    repeats=5,
)
QUICK = Plan(
    one_cheat_per_guard=True,
    honest=30,
    kinds=("tail", "accumulator", "race"),
    hostile=(
        "hangs",
        "exits_0",
        "kills_itself",
        "segfaults",
        "memory_bomb",
        "fork_bomb",
        "daemon",
        "descriptors",
        "writes_garbage",
        "import_exits",
    ),
    sent=(10, 6, 4),
    masked=("silu", "softmax"),
    masked_dtypes=("float32",),
    repeats=1,
)
REPEATED = 20


def describe(outcome: cheats.Outcome) -> str:
    """What is wrong with an outcome, in a line."""
    cheat = outcome.cheat
    caught = "caught" if outcome.caught else "NOT CAUGHT"
    passes = "passes" if outcome.passes_without else "DOES NOT PASS"
    return (
        f"{cheat.catalogue} {cheat.operator}/{cheat.name}: {caught}; without {cheat.guard} it {passes} "
        f"({outcome.words[:200]})"
    )


def confined() -> bool:
    """Whether workers' writes are confined here. Where they are not, nobody promises that files stay as they are."""
    return sandbox.wanted() == "full" and landlock.landlock_version() > 0


def chosen_cheats(plan: Plan, white_box: bool = False) -> list[cheats.Cheat]:
    """All of them, or the first one of each guard: those that are known, or those made for this verifier."""
    found = [
        cheat
        for cheat in cheats.cheats()
        if (cheat.family == "M") == white_box and (confined() or cheat.guard != "files")
    ]
    if not plan.one_cheat_per_guard:
        return found
    return list({cheat.guard: cheat for cheat in reversed(found)}.values())


def met_as(outcomes: Iterable[cheats.Outcome]) -> list[Met]:
    """What became of cheats with every guard up."""
    return [
        Met(catalogue=item.cheat.catalogue, name=f"{item.cheat.operator}/{item.cheat.name}", caught=item.caught)
        for item in outcomes
    ]


def try_cheats(plan: Plan, say: Callable[[str], None], met: list[Met]) -> list[Count]:
    """Each with its guard up and down, and a second and further verdict on some of them. `met` gets what became of
    them.
    """
    chosen = chosen_cheats(plan)
    began = time.perf_counter()
    same = asked = 0
    with cheats.Team() as team:
        outcomes = []
        for outcome in cheats.try_all(team, chosen):
            outcomes.append(outcome)
            if not (outcome.caught and outcome.passes_without):
                say(f"  {describe(outcome)}")
        took = time.perf_counter() - began
        verdicts = {
            outcome.cheat: outcome.words.split(":")[0]
            for outcome in outcomes
            if outcome.cheat.mode == "verify"
            and not outcome.cheat.also
            and outcome.cheat.guard not in ("freeze", "nonce")
        }
        for cheat, first in list(verdicts.items())[:REPEATED]:
            for _ in range(plan.repeats):
                asked += 1
                again = type(cheats.verdict_on(team, cheat, team.host(cheats.ALL))).__name__
                same += again == first
                if again != first:
                    say(f"  {cheat.operator}/{cheat.name}: {first}, then {again}")
    met += met_as(outcomes)
    families = {outcome.cheat.family for outcome in outcomes if outcome.caught}
    guards = {outcome.cheat.guard for outcome in outcomes}
    needed = {outcome.cheat.guard for outcome in outcomes if outcome.passes_without}
    return [
        Count(what="cheats caught", reached=sum(outcome.caught for outcome in outcomes), wanted=len(chosen)),
        Count(what="families with a cheat caught", reached=len(families), wanted=6),
        Count(
            what="cheats that pass once their guard is down",
            reached=sum(outcome.passes_without for outcome in outcomes),
            wanted=len(chosen),
        ),
        Count(what="guards shown to be needed", reached=len(needed), wanted=len(guards)),
        Count(what="seconds for the cheats", reached=round(took, 1), wanted=CHEATS_LIMIT_S, most=True),
        Count(what="same verdict on repeat", reached=same, wanted=asked),
    ]


def try_white_box(plan: Plan, say: Callable[[str], None], met: list[Met]) -> list[Count]:
    """Cheats by somebody who has read the verifier: what is asked of them beside the attacks on neighbours."""
    chosen = chosen_cheats(plan, white_box=True)
    if plan.one_cheat_per_guard:
        known = {cheat.guard for cheat in chosen_cheats(plan)}
        chosen = [cheat for cheat in chosen if cheat.guard not in known]
    with cheats.Team() as team:
        outcomes = []
        for outcome in cheats.try_all(team, chosen):
            outcomes.append(outcome)
            if not ((outcome.caught or outcome.cheat.left) and outcome.passes_without):
                say(f"  {describe(outcome)}")
    met += met_as(outcomes)
    left = sum(cheat.left for cheat in chosen)
    return [
        Count(what="white box: cheats left", reached=left, wanted=LEFT, most=True),
        Count(
            what="white box: cheats caught",
            reached=sum(outcome.caught for outcome in outcomes),
            wanted=len(chosen) - left,
        ),
        Count(
            what="white box: those that pass once their guard is down",
            reached=sum(outcome.passes_without and not outcome.cheat.left for outcome in outcomes),
            wanted=len(chosen) - left,
        ),
    ]


def try_honest(plan: Plan, folder: Path, say: Callable[[str], None]) -> list[Count]:
    """Honest kernels that look odd."""
    judged = list(honest.judge_all(folder, plan.honest))
    for item in judged:
        if not item.passed:
            say(f"  {item.operator}/{item.kernel} {item.dtype}: {item.words[:200]}")
    return [
        Count(what="honest verdicts", reached=len(judged), wanted=plan.honest),
        Count(what="honest kernels rejected", reached=sum(not item.passed for item in judged), wanted=0, most=True),
    ]


def try_candidates(plan: Plan, say: Callable[[str], None]) -> list[Count]:
    """Published exploits, the red team's own cheats and honest kernels as candidates of the loop."""
    asked = (candidates.published, candidates.planted, candidates.honest)
    published, planted, honest_ones = (list(ask(count, plan.part)) for ask, count in zip(asked, plan.sent, strict=True))
    wanted = [len(candidates.part_of(range(count), plan.part)) for count in plan.sent]
    exploits = [*published, *planted]
    for item in exploits:
        if item.accepted:
            say(f"  {item.name}: ACCEPTED by the loop")
    for item in honest_ones:
        if not item.accepted:
            say(f"  {item.name}: refused by the loop ({item.stage}): {item.words[:200]}")
    unread = sum(item.stage == "unread" for item in exploits)
    say(f"  {len(exploits)} exploits: {unread} refused unread, {len(exploits) - unread} by a trial")
    return [
        Count(what="loop: exploits sent", reached=len(exploits), wanted=sum(wanted[:2])),
        Count(what="loop: exploits accepted", reached=sum(item.accepted for item in exploits), wanted=0, most=True),
        Count(what="loop: honest candidates sent", reached=len(honest_ones), wanted=wanted[2]),
        Count(
            what="loop: honest candidates refused",
            reached=sum(not item.accepted for item in honest_ones),
            wanted=0,
            most=True,
        ),
    ]


def try_bugs(plan: Plan, folder: Path, say: Callable[[str], None]) -> list[Count]:
    """Planted bugs."""
    found = list(bugs.hunt(folder, plan.kinds))
    planted = [item for item in found if item.kind != "right"]
    for item in found:
        if not item.found:
            say(f"  {item.operator} {item.kind}: {item.verdict}")
    return [
        Count(what="planted bugs found", reached=sum(item.found for item in planted), wanted=len(planted) * 98 // 100),
        Count(what="operators with planted bugs", reached=len({item.operator for item in planted}), wanted=10),
        Count(
            what="unmutated kernels accepted",
            reached=sum(item.found for item in found if item.kind == "right"),
            wanted=len(bugs.RIGHT),
        ),
        Count(
            what="seconds for the slowest bug",
            reached=round(max(item.seconds for item in planted), 1),
            wanted=BUG_LIMIT_S,
            most=True,
        ),
    ]


def try_masks(plan: Plan, folder: Path, say: Callable[[str], None]) -> list[Count]:
    """Masks that are gone, and one element more, in the kernels as they are."""
    asked = [
        item for item in masks.hunt(folder, operators=plan.masked, dtypes=plan.masked_dtypes) if item.found is not None
    ]
    for item in asked:
        if not item.found:
            say(f"  {item.operator}/{item.implementation} {item.dtype}: {item.verdict}")
    return [
        Count(
            what="forgotten masks and elements too many found",
            reached=sum(bool(item.found) for item in asked),
            wanted=len(asked),
        ),
        Count(
            what="operators whose masks were forgotten",
            reached=len({item.operator for item in asked}),
            wanted=len(plan.masked) or 2,
        ),
    ]


def try_hostile(plan: Plan, folder: Path, say: Callable[[str], None]) -> list[Count]:
    """Hostile kernels, and what they leave."""
    memory, descriptors = hostile.shared_memory(), _descriptors()
    names = [name for name in plan.hostile if confined() or name not in hostile.NEED_CONFINEMENT]
    if len(names) < len(plan.hostile):
        say(
            "  left out, because writes are not confined here: "
            f"{', '.join(name for name in plan.hostile if name not in names)}"
        )
    survived = []
    for item in hostile.attack_all(folder, names):
        survived.append(item)
        if not (item.right and item.next_right) or item.orphans:
            say(
                f"  {item.name}: {item.verdict}; next one {'right' if item.next_right else 'WRONG'}; {item.orphans} "
                "orphans"
            )
    left = sum(item.orphans for item in survived)
    left += sum(hostile.survivors_of_a_dead_parent(folder, name) for name in ("hangs", "daemon", "fork_bomb"))
    return [
        Count(what="hostile kernels judged rightly", reached=sum(item.right for item in survived), wanted=len(names)),
        Count(what="next verdicts right", reached=sum(item.next_right for item in survived), wanted=len(names)),
        Count(what="orphans, killed parents included", reached=left, wanted=0, most=True),
        Count(what="shared memory left", reached=len(hostile.shared_memory() - memory), wanted=0, most=True),
        Count(what="descriptors left", reached=max(0, _descriptors() - descriptors), wanted=0, most=True),
    ]


def try_walls(plan: Plan, folder: Path, say: Callable[[str], None], met: list[Met]) -> list[Count]:
    """The white-box part: what a kernel made for this verifier can do to its neighbours."""
    if not confined():
        say("  left out: this kernel has no Landlock, or it was not asked for")
        return []
    chosen = [attack for attack in walls.ATTACKS if not plan.one_cheat_per_guard or attack.name in walls.QUICK]
    outcomes = []
    for outcome in walls.try_all(folder, chosen):
        outcomes.append(outcome)
        met.append(Met(catalogue=outcome.attack.family, name=outcome.attack.name, caught=not outcome.harmed))
        if outcome.harmed or not outcome.harms_without:
            say(
                f"  {outcome.attack.family} {outcome.attack.name}: {'HARM DONE' if outcome.harmed else 'kept out'}; "
                f"guards {'needed' if outcome.harms_without else 'NOT NEEDED'}"
            )
    return [
        Count(
            what="white box: attacks on neighbours kept out",
            reached=sum(not outcome.harmed for outcome in outcomes),
            wanted=len(chosen),
        ),
        Count(
            what="white box: those whose guards are needed",
            reached=sum(outcome.harms_without for outcome in outcomes),
            wanted=len(chosen),
        ),
    ]


def try_deaths(plan: Plan, folder: Path, say: Callable[[str], None]) -> list[Count]:
    """Workers that are killed, at every moment of a bench."""
    found = []
    for loss in deaths.losses(folder):
        found.append(loss)
        if not loss.holds:
            seconds = ", ".join(f"{each:.1f}" for each in loss.seconds)
            say(f"  {loss.name}: {seconds} s lost, {'killed' if loss.killed else 'NOBODY KILLED'}; {loss.other}")
    return [
        Count(what="moments at which a worker was killed", reached=sum(loss.killed for loss in found), wanted=10),
        Count(
            what="kernels beside it right and timed", reached=sum(not loss.other for loss in found), wanted=len(found)
        ),
        Count(
            what="seconds lost by a worker's death",
            reached=round(max(min(loss.seconds) for loss in found), 2),
            wanted=deaths.LIMIT_S,
            most=True,
        ),
        Count(what="deaths that cost little", reached=sum(loss.holds for loss in found), wanted=len(found)),
    ]


def try_contexts(plan: Plan, say: Callable[[str], None]) -> list[Count]:
    """Contexts that are poisoned, and a device that is kept busy."""
    with cheats.Team(on_gpu.HOME, "cuda") as team:
        poisoned = on_gpu.poison(team)
        late, next_right, took = on_gpu.busy_device(team)
    say(f"  poisoned contexts: {poisoned.seconds:.0f} s; a device that is kept busy: {took:.0f} s")
    return [
        Count(what="GPU: poisoned contexts refused", reached=poisoned.refused, wanted=20),
        Count(what="GPU: honest answers beside them right", reached=poisoned.beside, wanted=poisoned.asked),
        Count(what="GPU: honest kernels after them right", reached=poisoned.after, wanted=on_gpu.AFTER),
        Count(what="GPU: endless kernel timed out, next one right", reached=late + next_right, wanted=2),
    ]


def try_gpu_cheats(plan: Plan, say: Callable[[str], None]) -> list[Count]:
    """Cheats whose verdict or time is asked like that of any kernel, and honest kernels beside them."""
    asked = gpu_lanes.Campaign(None, GPU_CHEATS_S, Path(os.devnull), "cuda", say if plan.told else lambda words: None)
    chosen, honest = gpu_lanes.conduct(asked, plan.named)
    told, _ = gpu_lanes.report(asked.found, chosen, honest, asked.limit_s - asked.left())
    say(told)

    def holding(question: str) -> int:
        keys = [f"{cheat.operator}/{cheat.name} {question}" for cheat in chosen]
        return sum(bool(asked.found.get(key, {}).get("holds")) for key in keys)

    cold = holding("cold")
    return [
        Count(
            what="GPU: honest kernels verified and timed",
            reached=sum(bool(asked.found.get(task.key(), {}).get("holds")) for task in honest),
            wanted=len(honest),
        ),
        Count(what="GPU: cheats caught", reached=holding("caught") + cold, wanted=len(chosen)),
        Count(
            what="GPU: cheats that pass once their guard is down",
            reached=holding("passes") + cold,
            wanted=len(chosen),
        ),
    ]


def try_pinned(plan: Plan, say: Callable[[str], None]) -> list[Count]:
    """The kernel that pins its input in the cache. Nobody else may use the device meanwhile."""
    with cheats.Team(on_gpu.HOME, "cuda") as team:
        pinned = on_gpu.pinned_cache(team)
    for item in pinned:
        say(f"  {item}")
    return [
        Count(
            what="GPU: pinned cache neutralised, by clock",
            reached=sum(item.neutralised for item in pinned),
            wanted=len(pinned),
        ),
        Count(
            what="GPU: pinned cache gains once the guard is down",
            reached=sum(item.gains_without for item in pinned),
            wanted=len(pinned),
        ),
    ]


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def table(counts: Sequence[Count]) -> str:
    """The counts, one a line."""
    width = max(len(count.what) for count in counts)
    return "\n".join(
        f"{count.what:<{width}}  {count.reached:>7g}  {'at most' if count.most else 'at least'} "
        f"{count.wanted:g}{'' if count.holds else '   FALLS SHORT'}"
        for count in counts
    )


def run(plan: Plan, say: Callable[[str], None], only: Sequence[str] = ()) -> list[Count]:
    """Every part, or those named."""
    import torch

    # tiny tensors: a pool of threads that spin costs more than it brings, the more so on a busy machine
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    counts: list[Count] = []
    met: list[Met] = []
    on_gpu_s = 0.0
    with tempfile.TemporaryDirectory(prefix="redteam-") as folder:
        parts: dict[str, Callable[[], list[Count]]] = {
            "cheats": lambda: try_cheats(plan, say, met),
            "honest": lambda: try_honest(plan, Path(folder) / "honest", say),
            "candidates": lambda: try_candidates(plan, say),
            "bugs": lambda: try_bugs(plan, Path(folder) / "bugs", say),
            "masks": lambda: try_masks(plan, Path(folder) / "masks", say),
            "hostile": lambda: try_hostile(plan, Path(folder) / "hostile", say),
            "walls": lambda: try_walls(plan, Path(folder) / "walls", say, met),
            "white-box": lambda: try_white_box(plan, say, met),
            "deaths": lambda: try_deaths(plan, Path(folder) / "deaths", say),
        }
        on_devices: dict[str, Callable[[], list[Count]]] = {
            "gpu-contexts": lambda: try_contexts(plan, say),
            "gpu-cheats": lambda: try_gpu_cheats(plan, say),
            "gpu-cache": lambda: try_pinned(plan, say),
        }
        if torch.cuda.is_available():
            parts |= on_devices
        elif any(name.startswith("gpu") for name in only):
            raise SystemExit(
                "The GPU's part of the campaign needs a CUDA device; torch sees none here. See: opforge doctor"
            )
        for name, part in parts.items():
            if not only or name in only or (name in on_devices and "gpu" in only):
                began = time.perf_counter()
                say(f"{name} …")
                counts += part()
                took = time.perf_counter() - began
                say(f"  {took:.0f} s")
                on_gpu_s += took if name in on_devices else 0.0
    if met:
        say(by_family(met))
    if on_gpu_s:
        counts.append(Count(what="GPU: seconds", reached=round(on_gpu_s, 1), wanted=GPU_LIMIT_S, most=True))
    return counts


def part(words: str) -> candidates.Part:
    """2/3 as it is typed. Raises ArgumentTypeError for anything that is no part of a whole."""
    number, _, of = words.partition("/")
    if number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of):
        return int(number), int(of)
    raise argparse.ArgumentTypeError(f"{words!r} is no part of a whole. Write e.g. 2/3: the second of three parts")


def main() -> int:
    """The command: 0 when every count is reached."""
    parser = argparse.ArgumentParser(
        description="Planted cheats, honest kernels, planted bugs and hostile kernels against the verifier."
    )
    parser.add_argument("--quick", action="store_true", help="a reduced set, within three minutes")
    parser.add_argument(
        "--only",
        action="append",
        choices=(
            "cheats",
            "honest",
            "candidates",
            "bugs",
            "masks",
            "hostile",
            "walls",
            "white-box",
            "deaths",
            "gpu",
            "gpu-contexts",
            "gpu-cheats",
            "gpu-cache",
        ),
        help="one part; may be given several times",
    )
    parser.add_argument(
        "--cheat",
        action="append",
        metavar="PATTERN",
        help="of the cheats on a GPU, those whose name matches; may be given several times",
    )
    parser.add_argument(
        "--part",
        type=part,
        default=candidates.ALL,
        metavar="2/3",
        help="of the candidates for the loop, the second of three parts: each may have minutes of its own",
    )
    parser.add_argument(
        "--masks-of",
        action="append",
        metavar="OPERATOR",
        help="forget the masks of this operator's kernels, in all its dtypes; may be given several times",
    )
    parser.add_argument("--verbose", action="store_true", help="a line for every cheat on a GPU")
    arguments = parser.parse_args()
    chosen = replace(QUICK if arguments.quick else FULL, told=arguments.verbose, named=tuple(arguments.cheat or ()))
    if arguments.masks_of:
        chosen = replace(chosen, masked=tuple(arguments.masks_of), masked_dtypes=())
    counts = run(
        replace(chosen, part=arguments.part),
        lambda words: print(words, flush=True),
        arguments.only or (),
    )
    print(table(counts))
    return int(not all(count.holds for count in counts))
