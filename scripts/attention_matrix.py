"""Attention's matrix: mask x heads x head dimension x feature x forward or backward x backend, each cell verified.

python scripts/attention_matrix.py --json matrix.json --page matrix.html       all of it, on this machine's device
python scripts/attention_matrix.py --dims 64 192/128 --masks causal window     a part of it
python scripts/attention_matrix.py --fuzz 20                                   drawn shapes besides: Nq != Nk, N = 1,
                                                                               lengths % 128 of 1, 64 and 127
python scripts/attention_matrix.py --from matrix.json --page matrix.html       what was found before
python scripts/attention_matrix.py --from matrix.json --time --json times.json what Passes is also timed, for each cell
                                                                               and backend the implementation that is
                                                                               preferred: 1025 queries, 1037 keys

python scripts/attention_matrix.py --from matrix.json --rest --json rest.json  verified is what those files lack
python scripts/attention_matrix.py --from matrix.json --again --implementations triton_twokernels --json left.json
                                                                               without what they say of a kernel that
                                                                               has changed: then --from left.json --rest

Several processes may do it at once. With --part I/N each verifies one N-th of the cells. Those that time are given the
same --claims FOLDER, from which each takes its next cells, and the same --lock FILE: they make calls ready together,
and each times alone (attention_matrix_times.py). Time after the verification, not beside it. Answers are written as
they come: of several files the later one counts, and what has a time is not timed again. Each time is kept with the
card that it was taken on; where there are several, the table says which.

A cell is one call of small odd lengths, held against the float64 oracle as `opforge verify` does, for each of the
implementations; Triton in its interpreter where there is no GPU, CUDA on a GPU alone. A backend computes a cell where
one of its implementations Passes and none fails (a baseline whose file says that it is inaccurate may); it refuses
a cell where all of them refuse it, with the reason. Valid are the cells that are not refused. Exit code 1 where fewer
than 95 % of a backend's valid cells Pass.
"""

from __future__ import annotations

import argparse
import collections
import html
import itertools
import json
import lzma
import random
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "src"), str(Path(__file__).resolve().parent)]

BOTTOM = {"causal": True, "alignment": "bottom_right"}
MASKS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "causal bottom right": BOTTOM,
    "window left": {"causal": True, "window_left": 7},
    "window both": {"window_left": 5, "window_right": 9, "alignment": "bottom_right"},
    "padding": {"has_key_lengths": True},
    "mask": {"has_mask": True},
    "varlen": {"causal": True},
    "paged": {},
}
HEADS = {"MHA": (3, 1), "GQA": (2, 2), "MQA": (1, 4)}
DIMS = {"64": (64, 64), "96": (96, 96), "128": (128, 128), "192": (192, 192), "256": (256, 256), "192/128": (192, 128)}
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "dropout": {"dropout": 0.25, "seed": 5},
    "softcap": {"softcap": 2.0},
    "ALiBi": {"has_alibi_slopes": True},
    "bias": {"has_bias": True},
    "sinks": {"has_sinks": True},
}
DIRECTIONS = ("forward", "backward")
PACKED = {"varlen": "attention_varlen", "paged": "attention_decode"}
WANTED = 0.95
PASS, REFUSED, MISSING = "Pass", "refused", "not in the definition"


@dataclass(frozen=True)
class Cell:
    """What is asked of every backend."""

    mask: str
    heads: str
    dim: str
    feature: str
    direction: str

    @property
    def operator(self) -> str:
        return PACKED.get(self.mask, "attention") + ("_backward" if self.direction == "backward" else "")


@dataclass(frozen=True)
class Answer:
    """What an implementation made of a cell: Pass with its share of the bound, refused, or the verdict's name."""

    cell: Cell
    backend: str
    implementation: str
    dtype: str
    verdict: str
    words: str
    seconds: float | None
    flops: float | None
    bytes: float | None
    """What the call that was timed computes, keys beyond a mask's bounds left out, and what it moves at the least."""
    card: str | None
    """The GPU that the time was taken on, as PyTorch names it; None where there is no time, "cpu" on a CPU."""


TIMED = (1025, 1037)
"""Lengths of a call that is timed: as odd as those of the cells, so that what was compiled for these serves."""
BATCH, PAGES = 4, 64
"""Sequences, and pages of each, where a call is timed."""


def cells(options: argparse.Namespace) -> list[Cell]:
    """All cells of what was asked for."""
    axes = (options.masks, options.heads, options.dims, options.features, options.directions)
    return part_of([Cell(*names) for names in itertools.product(*axes)], options.part)


def part_of(found: Sequence[Cell], part: str) -> list[Cell]:
    """The `I` of `N` equal shares of the cells, `I` from 1 on."""
    place, _, count = part.partition("/")
    if int(count) == 1:
        return list(found)
    # mixed, so that no share has one direction or one feature alone; kinds of heads stay together, since one program
    # serves them all
    kinds = list(dict.fromkeys(replace(cell, heads="") for cell in found))
    mine = set(random.Random(0).sample(kinds, len(kinds))[int(place) - 1 :: int(count)])
    return [cell for cell in found if replace(cell, heads="") in mine]


def missing(operators: Mapping[str, Any], cell: Cell) -> str | None:
    """Why no implementation can be asked: the definition does not have it."""
    operator = operators.get(cell.operator)
    if operator is None:
        return f"there is no {cell.operator}"
    known = {spec.name for spec in operator.scalars} | {f"has_{spec.name}" for spec in operator.inputs if spec.optional}
    lacking = [
        name.removeprefix("has_") for name in {**MASKS[cell.mask], **FEATURES[cell.feature]} if name not in known
    ]
    return f"{operator.name} has no {', '.join(lacking)}" if lacking else None


def case_of(operator: Any, cell: Cell, lengths: tuple[int, int] = (33, 45)) -> Any:
    """The call of a cell."""
    from opforge.core.definition.operator import Case
    from opforge.definitions.attention.cases import axes
    from opforge.definitions.attention.varlen import varlen_axes

    kv_heads, group = HEADS[cell.heads]
    dim, value_dim = DIMS[cell.dim]
    scalars = {f"has_{spec.name}": False for spec in operator.inputs if spec.optional}
    scalars |= {**MASKS[cell.mask], **FEATURES[cell.feature]}
    if cell.mask == "varlen":
        total = [BATCH * length for length in lengths] if lengths == TIMED else lengths
        sizes: dict[str, Any] = dict(varlen_axes(4, *total, kv_heads, group, dim, value_dim))
    elif cell.mask == "paged":
        sizes = dict(operator.cases[0].axes)
        sizes |= {"kv_heads": kv_heads, "group": group, "head_dim": dim}
        sizes |= {"value_dim": value_dim} if "value_dim" in sizes else {}
        if lengths == TIMED:
            sizes |= {"max_pages": PAGES, "pages": sizes["batch"] * PAGES}
    else:
        batch = BATCH if lengths == TIMED else 2
        sizes = dict(axes(batch, kv_heads, group, *lengths, dim, value_dim))
    name = f"{cell.mask}, {cell.heads}, {cell.dim}, {cell.feature}, {lengths[0]} x {lengths[1]}"
    return Case(name=name, axes=sizes, scalars=scalars, why="a cell of the matrix")


def answers(bench: Any, item: Any, dtype: str, asked: Mapping[str, tuple[Cell, Any]]) -> Iterator[tuple[str, str, str]]:
    """(case, verdict, words) of each: all in one verification, each by itself where that is no Pass."""
    from opforge.core.evidence.verdict import Pass, Unsupported
    from opforge.trial.baselines import as_baseline
    from opforge.verify import verify

    whole = as_baseline(item, verify(bench, item, dtype, cases=[case for _, case in asked.values()]))
    if isinstance(whole, Pass):
        for checked in whole.checked:
            ratio = max((metrics.worst_ratio for metrics in checked.metrics), default=0.0)
            yield checked.case.name, PASS, f"{ratio:.0%} of the bound"
        for name, reason in whole.not_taken:
            yield name, REFUSED, reason
    elif isinstance(whole, Unsupported):
        for name in asked:
            yield name, REFUSED, whole.reason
    elif len(asked) == 1:
        yield next(iter(asked)), type(whole).__name__, str(getattr(whole, "cause", getattr(whole, "reason", "")))
    else:
        for name, pair in asked.items():
            yield from answers(bench, item, dtype, {name: pair})


def lengths_drawn(count: int, seed: int) -> list[tuple[int, int]]:
    """Lengths of queries and keys: one of them 1, or 1, 64 and 127 beyond a multiple of 128, most pairs unequal."""
    draw = random.Random(seed)
    edges = [1, 64, 65, 127, 128, 129, 192, 255, 257]
    return [(draw.choice(edges), draw.choice(edges)) for _ in range(count)]


def keep(path: Path | None, found: Sequence[Answer]) -> None:
    """Write the answers, whole or not at all."""
    if path is not None:
        fresh = path.with_name(f".new.{path.name}")
        fresh.write_text(json.dumps({"answers": [asdict(answer) for answer in found]}))
        fresh.replace(path)


def kept_in(path: Path) -> list[dict[str, Any]]:
    """What `keep` wrote, packed with xz or not."""
    content = path.read_bytes()
    found: list[dict[str, Any]] = json.loads(lzma.decompress(content) if path.suffix == ".xz" else content)["answers"]
    return found


Asked = tuple[Cell, str, str]


def asked_of(answer: Answer) -> Asked:
    """Which question it answers: the cell, the implementation, the dtype."""
    return answer.cell, answer.implementation, answer.dtype


def merged(answers: Iterable[Answer]) -> list[Answer]:
    """One answer to each question: the last, or the last that has a time where all say Pass."""
    found: dict[Asked, Answer] = {}
    for answer in answers:
        before = found.get(asked_of(answer))
        if before is None or answer.verdict != before.verdict or answer.seconds is not None or before.seconds is None:
            found[asked_of(answer)] = answer
    return list(found.values())


def verified(options: argparse.Namespace, known: Set[Asked]) -> list[Answer]:
    """Every answer that is not known, told as it comes."""
    from opforge.registry import load
    from opforge.runner import Isolated
    from opforge.verify import CaseCache

    registry, began = load([]), time.monotonic()
    operators = {name: registry.operator(name) for name in registry.names() if name.startswith("attention")}
    groups: dict[str, list[tuple[Cell, Any]]] = collections.defaultdict(list)
    found: list[Answer] = []
    wanted = cells(options)
    for cell in wanted:
        reason = missing(operators, cell)
        if reason is not None:
            found.append(Answer(cell, "", "", "", MISSING, reason, None, None, None, None))
            continue
        if not options.drawn_alone:
            groups[cell.operator].append((cell, case_of(operators[cell.operator], cell)))
    for place, lengths in enumerate(lengths_drawn(options.fuzz, options.seed)):
        cell = random.Random(options.seed + place).choice([cell for cell in wanted if cell.mask != "paged"])
        if missing(operators, cell) is None:
            groups[cell.operator].append((cell, case_of(operators[cell.operator], cell, lengths)))
    with Isolated() as host:
        for name, pairs in groups.items():
            items = [item for item in registry.implementations(name) if item.backend in options.backends]
            items = [item for item in items if not options.implementations or item.name in options.implementations]
            pairs = [
                (cell, case)
                for cell, case in pairs
                if any((cell, item.name, dtype) not in known for item in items for dtype in options.dtypes)
            ]
            for first in range(0, len(pairs), options.together):
                asked = {case.name: (cell, case) for cell, case in pairs[first : first + options.together]}
                # one after another: what a group of cases has prepared is given back before the next
                bench = CaseCache(registry=registry, operator=operators[name], host=host, device=options.device)
                try:
                    for dtype in options.dtypes:
                        for item in items:
                            if (time.monotonic() - began) / 60 > options.minutes:
                                print(
                                    f"stopped after {options.minutes:g} minutes; later cells are not asked", flush=True
                                )
                                return found
                            left = {
                                case: pair for case, pair in asked.items() if (pair[0], item.name, dtype) not in known
                            }
                            if not left:
                                continue
                            for case, verdict, words in answers(bench, item, dtype, left):
                                who = (asked[case][0], item.backend, item.name, dtype)
                                found.append(Answer(*who, verdict, words, None, None, None, None))
                                if verdict not in (PASS, REFUSED):
                                    print(f"{name} {item.name} {dtype} {case}: {verdict}: {words}", flush=True)
                finally:
                    bench.close()
                done = min(first + options.together, len(pairs))
                print(f"[{time.monotonic() - began:4.0f} s] {name}: {done} of {len(pairs)} cells", flush=True)
                # what was found is kept if the run is ended
                keep(options.json, found)
    return found


def by_backend(found: Sequence[Answer]) -> dict[tuple[Cell, str], tuple[str, str]]:
    """(verdict, words) of each cell and backend: a failure of any of its implementations, else a Pass of one, else why
    all refuse it.
    """
    result: dict[tuple[Cell, str], tuple[str, str]] = {}
    rank = {REFUSED: 0, "Inaccurate": 1, PASS: 2}
    for answer in found:
        if answer.verdict == MISSING:
            continue
        key = (answer.cell, answer.backend)
        before = result.get(key)
        if before is None or rank.get(answer.verdict, 3) > rank.get(before[0], 3):
            result[key] = (answer.verdict, f"{answer.implementation} {answer.dtype}: {answer.words}")
    return result


def shares(found: Sequence[Answer]) -> list[tuple[str, int, int, int]]:
    """(backend, Pass, valid, refused) of each backend."""
    by = by_backend(found)
    backends = sorted({backend for _, backend in by})
    lines = []
    for backend in backends:
        verdicts = [verdict for (_, other), (verdict, _) in by.items() if other == backend]
        valid = [verdict for verdict in verdicts if verdict != REFUSED]
        lines.append((backend, valid.count(PASS), len(valid), len(verdicts) - len(valid)))
    return lines


def forgotten(found: Sequence[Answer], options: argparse.Namespace) -> list[Answer]:
    """The answers without those about what is asked for; where that is to be timed, without their times alone."""
    wanted = set(cells(options))
    kept = []
    for answer in found:
        asked = answer.cell in wanted and answer.backend in options.backends
        if asked and (not options.implementations or answer.implementation in options.implementations):
            kept += [replace(answer, seconds=None, card=None)] if options.time else []
        else:
            kept.append(answer)
    return kept


def rates_of(found: Sequence[Answer]) -> dict[tuple[Cell, str], list[tuple[str, float]]]:
    """(card, TFLOP/s) of what was timed, for each cell and backend; of paged calls GB/s."""
    result: dict[tuple[Cell, str], list[tuple[str, float]]] = collections.defaultdict(list)
    for item in found:
        if item.seconds is not None and item.flops is not None and item.bytes is not None:
            amount = item.bytes / 1e9 if item.cell.mask == "paged" else item.flops / 1e12
            result[item.cell, item.backend].append((item.card or "", amount / item.seconds))
    return dict(result)


def short(card: str) -> str:
    """
    >>> short("NVIDIA H100 80GB HBM3")
    'H100'
    """
    return next(iter(card.removeprefix("NVIDIA ").split()), "unknown")


def span(rates: Sequence[tuple[str, float]], *, named: bool) -> str:
    """The least and the largest of some rates, of each card by itself where cards are `named`."""
    parts = []
    for card in sorted({card for card, _ in rates}, reverse=True):
        own = [rate for other, rate in rates if other == card]
        low, high = f"{min(own):.3g}", f"{max(own):.3g}"
        parts.append((low if low == high else f"{low}-{high}") + (f" ({short(card)})" if named else ""))
    return ", ".join(parts)


def text(found: Sequence[Answer]) -> str:
    """The matrix in Markdown: a row for each mask, feature and direction, heads and dimensions counted in its cells."""
    by = by_backend(found)
    backends = sorted({backend for _, backend in by})
    speeds = rates_of(found)
    several = len({card for rates in speeds.values() for card, _ in rates}) > 1
    rows: dict[tuple[str, str, str], list[Cell]] = collections.defaultdict(list)
    for answer in found:
        row = rows[answer.cell.mask, answer.cell.feature, answer.cell.direction]
        if answer.cell not in row:
            row.append(answer.cell)
    lines = [f"| mask | feature | direction | {' | '.join(backends)} |", "|---" * (len(backends) + 3) + "|"]
    reasons: dict[str, int] = collections.Counter()
    order = [list(names) for names in (MASKS, FEATURES, DIRECTIONS)]

    def placed(row: tuple[str, str, str]) -> tuple[int, int, int]:
        mask, feature, direction = (names.index(name) for names, name in zip(order, row, strict=True))
        return direction, mask, feature

    for mask, feature, direction in sorted(rows, key=placed):
        members = rows[mask, feature, direction]
        parts = []
        for backend in backends:
            verdicts = [by[cell, backend] for cell in members if (cell, backend) in by]
            refused = [words for verdict, words in verdicts if verdict == REFUSED]
            passed = sum(verdict == PASS for verdict, _ in verdicts)
            # without the sizes of one call
            reasons.update(words.partition(" does not hold for ")[0] for words in refused)
            valid = len(verdicts) - len(refused)
            rates = [rate for cell in members for rate in speeds.get((cell, backend), [])]
            told = f" · {span(rates, named=several)}" if rates else ""
            parts.append("-" if not verdicts else f"{passed}/{valid}{told}" if valid else "refused")
        if set(parts) != {"-"}:
            lines.append(f"| {mask} | {feature} | {direction} | {' | '.join(parts)} |")
    lines.append("")
    for backend, passed, valid, refused in shares(found):
        share = f" ({passed / valid:.1%})" if valid else ""
        count = sum(1 for _, other in speeds if other == backend)
        told = f", {count} Pass and are timed ({count / valid:.1%})" if count and valid else ""
        lines.append(f"{backend}: {passed} of {valid} valid cells Pass{share}{told}; {refused} refused.")
    reasons.update(answer.words for answer in found if answer.verdict == MISSING)
    if reasons:
        lines += ["", "Refused or missing, with the number of cells:", ""]
        lines += [f"- {count} x {words}" for words, count in collections.Counter(reasons).most_common()]
    return "\n".join(lines)


def page(found: Sequence[Answer]) -> str:
    """The same as one HTML page, every cell by itself with its words."""
    by = by_backend(found)
    backends = sorted({backend for _, backend in by})
    times = {(item.cell, item.backend): item for item in found if item.seconds is not None}
    colour = {PASS: "#d7f0d7", REFUSED: "#eee"}
    lines = []
    for cell in dict.fromkeys(answer.cell for answer in found):
        columns = []
        for backend in backends:
            verdict, words = by.get((cell, backend), (MISSING, ""))
            shade = colour.get(verdict, "#f6f6f6" if verdict == MISSING else "#f8c8c8")
            shown = html.escape(verdict if verdict != MISSING else "-")
            timed = times.get((cell, backend))
            if timed is not None and timed.seconds is not None:
                shown += f" {timed.seconds * 1e3:.3g} ms"
                words += f"; timed on {timed.card}"
            columns.append(f'<td style="background:{shade}" title="{html.escape(words)}">{shown}</td>')
        named = (cell.mask, cell.heads, cell.dim, cell.feature, cell.direction)
        lines.append("<tr>" + "".join(f"<td>{html.escape(word)}</td>" for word in named) + "".join(columns) + "</tr>")
    head = "".join(f"<th>{name}</th>" for name in ("mask", "heads", "dim", "feature", "direction", *backends))
    return (
        "<!doctype html><meta charset=utf-8><title>Attention's matrix</title>"
        "<style>body{font:14px sans-serif}td,th{padding:2px 8px;border:1px solid #ddd}</style>"
        f"<h1>Attention's matrix</h1><pre>{html.escape(text(found))}</pre>"
        f"<table><tr>{head}</tr>{''.join(lines)}</table>\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default=None, help="default: the accelerator if there is one")
    parser.add_argument("--backends", nargs="+", default=["torch", "triton", "cpp", "cuda"])
    parser.add_argument("--dtypes", nargs="+", default=None, help="default: float32, on a GPU bfloat16")
    parser.add_argument("--implementations", nargs="+", default=[], help="these alone, by name")
    for name, values in (
        ("masks", MASKS),
        ("heads", HEADS),
        ("dims", DIMS),
        ("features", FEATURES),
        ("directions", DIRECTIONS),
    ):
        parser.add_argument(f"--{name}", nargs="+", default=list(values), choices=list(values))
    parser.add_argument("--fuzz", type=int, default=0, help="so many calls of drawn lengths besides")
    parser.add_argument("--drawn-alone", action="store_true", help="of all cells only the calls of drawn lengths")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--together", type=int, default=36, help="cells in one verification")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--part", default="1/1", help="I/N: the I-th of N shares of the cells")
    parser.add_argument("--lock", type=Path, help="with --time: a file that its processes share")
    parser.add_argument("--claims", type=Path, help="with --time: a folder that its processes share")
    parser.add_argument(
        "--again",
        action="store_true",
        help="with --from: leave out what those files say of what is asked for, with --time its times alone",
    )
    parser.add_argument("--rest", action="store_true", help="with --from: verify what those files have no answer about")
    parser.add_argument("--time", action="store_true", help="time what Passes as well")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument(
        "--from", dest="kept", type=Path, nargs="+", default=[], help="show what these files hold (.xz too)"
    )
    options = parser.parse_args()
    found = merged(
        Answer(**{"seconds": None, "flops": None, "bytes": None, "card": None, **item, "cell": Cell(**item["cell"])})
        for path in options.kept
        for item in kept_in(path)
    )
    if options.again:
        found = forgotten(found, options)
    if options.rest or not options.kept:
        import torch

        options.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
        options.dtypes = options.dtypes or ["float32" if options.device == "cpu" else "bfloat16"]
        found = verified(options, {asked_of(answer) for answer in found})
    if options.time:
        from attention_matrix_times import timed

        found = timed(options, found)
    keep(options.json, found)
    if options.page:
        options.page.write_text(page(found), encoding="utf-8")
    print(text(found))
    counts = shares(found)
    return int(not all(passed >= WANTED * valid for _, passed, valid, _ in counts) or not counts)


if __name__ == "__main__":
    sys.exit(main())
