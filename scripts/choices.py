"""How good dispatch's choices are, for shapes that are in no record.

python scripts/choices.py                                   every workload of results/nvidia-h200.jsonl.gz left out in
turn, chosen by the others
python scripts/choices.py --descriptor nvidia-h100          the same over the records of an H100
python scripts/choices.py --tuned                           the choices of tuned/*.json, held against the records' times
python scripts/choices.py --measure times.json              on a GPU: the implementations called directly on forty
shapes (and, --grid, on the shape classes)
python scripts/choices.py --times times.json                those forty, chosen by the records and, if they were timed,
the shape classes of the file

Where results/ has records of a sibling, a device that runs the same code (an H100 beside an H200), each is done twice:
by the device's own times alone, and with the sibling's. Leaving a call out leaves the sibling's time of it there: on a
device of that model it would be there too. `--without-sibling-call` leaves that out as well.

Two harder questions are asked of the records as well, which show whether the model knows more than it was made from:
each operator chosen without any time of its own (by its family's alone), and each half of the workloads by the other.

Prints, for each choice that costs more than 2 %, what was chosen, what would have been best and by how much; then the
shares within 5 % and 10 % of the best of opforge's own kernels, and how often PyTorch was faster by more than 3 %. Exit
code 1 where less than 95 % are within 5 %, one is beyond 10 %, or PyTorch is faster somewhere; the harder questions are
told and not judged.
Where there are records of a sibling, the second way counts: it is what dispatch does.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
sys.path.insert(0, str(ROOT / "src"))

BF16 = "bfloat16"
ROW_SHAPES = (
    (4096, 65536),
    (8192, 16384),
    (4099, 4093),
    (1021, 32749),
    (7, 500_009),
    (300_007, 129),
    (2000, 10_000),
    (48, 20_000),
)
HELD_OUT: tuple[tuple[str, str, Mapping[str, Any], str], ...] = (
    *(
        (operator, BF16, {"lead": (rows,), "cols": cols}, "contiguous")
        for operator in ("softmax", "rmsnorm", "layernorm")
        for rows, cols in ROW_SHAPES
    ),
    *(
        ("matmul", BF16, {"m": m, "n": n, "k": k}, layout)
        for m, n, k, layout in (
            (3000, 5000, 7000, "contiguous transposed"),
            (4097, 4095, 4093, "contiguous"),
            (1999, 2003, 2011, "contiguous"),
            (8000, 1000, 3000, "contiguous"),
            (100, 10_000, 5000, "contiguous transposed"),
            (5120, 5120, 640, "contiguous"),
            (1, 11_008, 4096, "contiguous transposed"),
            (7, 12_288, 4096, "contiguous"),
            (12_000, 333, 4444, "contiguous"),
            (2048, 3072, 2560, "transposed transposed"),
            (640, 6400, 1600, "contiguous"),
            (3000, 5000, 7000, "contiguous"),
        )
    ),
    ("softmax", "float32", {"lead": (3333,), "cols": 3333}, "contiguous"),
    ("cross_entropy", BF16, {"lead": (4001,), "classes": 10_007}, "contiguous"),
    ("gelu", BF16, {"shape": (3001, 4999)}, "contiguous"),
    ("transpose", BF16, {"lead": (3,), "rows": 2003, "cols": 4001}, "contiguous"),
)
"""Forty shapes that no record is of: odd, prime, wide, tall, the other way round."""
SLOW = ("cuda_naive", "triton_naive", "cuda_shared")
"""Kernels that are there to teach: never the best, and a second each on large shapes."""


@dataclass(frozen=True)
class Measured:
    """Every implementation's time on one call. `ours` are what dispatch may choose, PyTorch's eager among them;
    `launch` the host's seconds by which calls in a row of some are bound.
    """

    operator: str
    dtype: str
    axes: Mapping[str, Any]
    scalars: Mapping[str, Any]
    layout: str
    ours: Mapping[str, float]
    name: str = ""
    launch: Mapping[str, float] = field(default_factory=dict)

    @property
    def in_a_row(self) -> dict[str, float]:
        """Seconds of a call among others that follow each other at once, as a caller without a graph has them."""
        return {name: max(value, self.launch.get(name, 0.0)) for name, value in self.ours.items()}

    @property
    def words(self) -> str:
        sizes = "×".join(
            "×".join(map(str, value)) if isinstance(value, tuple) else str(value) for value in self.axes.values()
        )
        return (
            f"{self.operator} {self.dtype} {sizes}"
            + ("" if self.layout == "contiguous" else f" {self.layout}")
            + (f" ({self.name})" if self.name else "")
        )


def _axes(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def measure(file: Path, device: str, grid: bool, operators: Sequence[str], budget_s: float) -> None:
    """Time implementations directly, write `file` after each shape."""
    import direct
    import torch

    from opforge.core.definition.implementation import COMPARED_WITH
    from opforge.core.definition.shape_classes import shape_grid
    from opforge.registry import load
    from opforge.trial.compile_ahead import compiling_ahead

    registry = load()
    began = time.perf_counter()
    wanted = [
        (operator, dtype, axes, layout, False)
        for operator, dtype, axes, layout in HELD_OUT
        if not operators or operator in operators
    ]
    if grid:
        names = operators or sorted({operator for operator, *_ in HELD_OUT})
        wanted += [
            (name, BF16, workload.axes, workload.layout, True)
            for name in names
            for workload in shape_grid(registry.operator(name), cpu=device == "cpu")
        ]
    kept = {
        name: [
            item
            for item in registry.implementations(name)
            if item.backend not in (*COMPARED_WITH, "tilelang") and item.name not in SLOW
        ]
        for name, *_ in wanted
    }
    rows: list[dict[str, Any]] = []
    with compiling_ahead([item for items in kept.values() for item in items], device):
        for name, dtype, axes, layout, from_grid in wanted:
            if time.perf_counter() - began > budget_s:
                print(f"not begun for want of time: {name} {axes}", flush=True)
                continue
            operator = registry.operator(name)
            scalars = operator.scalar_values({})
            tensors = direct.tensors_for(operator, axes, dtype, scalars, device, layout)
            calls: dict[str, Any] = {}
            left_out: dict[str, str] = {}
            expected = None
            for item in sorted(kept[name], key=lambda item: item.backend != "torch"):
                try:
                    call = direct.prepared(operator, item, tensors, axes, dtype, scalars)
                    if isinstance(call, str):
                        left_out[item.name] = call
                        continue
                    got = call(tensors)
                    if item.backend == "torch":
                        expected = got
                    elif expected is not None and not direct.right(got, expected, dtype):
                        left_out[item.name] = "far from PyTorch's answer"
                        continue
                    calls[item.name] = call
                except direct.kernel_errors() as error:
                    left_out[item.name] = direct.reason_of(error)
            copies = direct.copies_of(tensors)
            times, called = direct.interleaved(calls, copies, device)
            del copies, tensors, calls, expected
            if device != "cpu":
                torch.cuda.empty_cache()
            rows.append(
                {
                    "operator": name,
                    "dtype": dtype,
                    "axes": axes,
                    "scalars": scalars,
                    "layout": layout,
                    "grid": from_grid,
                    "times": times,
                    "left_out": left_out,
                    "not_captured": called,
                }
            )
            file.write_text(json.dumps({"device": detect_name(device), "rows": rows}))
            fastest = sorted(times.items(), key=lambda entry: entry[1])[:3]
            print(
                f"{time.perf_counter() - began:6.1f} s  {name} {axes} {layout}: "
                + ", ".join(f"{who} {value * 1e6:.1f} us" for who, value in fastest),
                flush=True,
            )


def detect_name(device: str) -> str:
    """The descriptor's name of this machine's device."""
    from opforge.machine import detect

    return detect(device).name


def _manner(operator: Any, axes: Mapping[str, Any], dtype: str, scalars: Mapping[str, Any], layout: str) -> Any:
    from opforge.core.definition.dtypes import DTYPES
    from opforge.core.definition.shapes import collapsed_shape
    from opforge.roofline.manners import manner_of
    from opforge.runner.worker.arena import strides_for

    words = layout.split()
    found = []
    for place, spec in enumerate(operator.inputs):
        shape = collapsed_shape(spec.shape, axes)
        strides, skip = strides_for(words[place] if len(words) > 1 else layout, shape)
        found.append((shape, strides, DTYPES[spec.dtype_for(dtype, scalars)].itemsize, skip == 0))
    return manner_of(found)


def from_records(file: Path) -> list[Measured]:
    """Calls of the records with the newest time of each implementation, by its default or the one config that was
    timed.
    """
    from opforge.core.definition.implementation import COMPARED_WITH
    from opforge.core.evidence.timing import long_launch_s
    from opforge.store import fact_of, read_file, read_lines

    calls: dict[Any, dict[str, tuple[str, float, float]]] = defaultdict(dict)
    for record in read_lines(read_file(file)):
        if (
            record.timing is None
            or record.timing.suspect
            or record.backend in COMPARED_WITH
            or record.run.startswith("tune-")
        ):
            continue
        layout = getattr(record, "layout", "contiguous")
        key = (
            record.operator,
            record.dtype,
            json.dumps(record.axes),
            json.dumps(record.scalars),
            layout,
            record.workload,
        )
        known = calls[key].get(record.implementation)
        if known is None or known[0] < record.created_at:
            launch_s = long_launch_s(fact_of(record).launch_s)
            calls[key][record.implementation] = (record.created_at, record.timing.median_s, launch_s)
    return [
        Measured(
            operator,
            dtype,
            _axes(json.loads(axes)),
            json.loads(scalars),
            layout,
            {name: value for name, (_, value, _) in times.items()},
            workload,
            {name: launch for name, (*_, launch) in times.items() if launch},
        )
        for (operator, dtype, axes, scalars, layout, workload), times in sorted(calls.items())
    ]


def from_times(file: Path) -> tuple[list[Measured], list[Measured]]:
    """The forty shapes, and the shape classes, of a file that --measure wrote."""
    held_out, classes = [], []
    for row in json.loads(file.read_text())["rows"]:
        found = Measured(row["operator"], row["dtype"], _axes(row["axes"]), row["scalars"], row["layout"], row["times"])
        (classes if row["grid"] else held_out).append(found)
    return held_out, classes


@dataclass(frozen=True)
class Chosen:
    """What was chosen for a call, beside what was best: `over` the best of opforge's own kernels, `beside_torch`
    PyTorch (1.0 is as long).
    """

    call: Measured
    name: str
    best: str
    over: float
    beside_torch: float
    how: str


_PLACES: dict[tuple[int, str], tuple[Measured, Any]] = {}
_REGISTRY: dict[str, Any] = {}
"""Made once: every call is looked at from hundreds of others."""

Elsewhere = Mapping[str, Sequence[Measured]]
"""Times of sibling devices, by the names of their descriptors."""


def choose(call: Measured, others: Iterable[Measured], device: str, elsewhere: Elsewhere) -> Chosen | None:
    """The choice for a call from the times of others and of siblings, as dispatch makes it; None where there is nothing
    to choose from.
    """
    from opforge.core.definition.implementation import COMPARED_AS_IS, Config
    from opforge.machine import descriptors
    from opforge.registry import load
    from opforge.roofline.family_model import FamilyModel
    from opforge.roofline.time_model import TimedCall, pick, place_of, tells

    registry = _REGISTRY.setdefault("registry", load())
    operator = registry.operator(call.operator)
    implementations = registry.implementations(call.operator)
    others = list(others)
    form, kind = operator.compute_dtype_of(call.dtype, call.scalars), operator.kind_of_call(call.scalars)

    def place(one: Measured, where: str) -> Any:
        found = _PLACES.get((id(one), where))
        if found is None:
            its = registry.operator(one.operator)
            manner = _manner(its, one.axes, one.dtype, one.scalars, one.layout)
            found = one, place_of(its, one.axes, one.dtype, one.scalars, manner, descriptors()[where])
            _PLACES[id(one), where] = found
        return found[1]

    def timed(known: Iterable[Measured], where: str) -> list[TimedCall]:
        telling = [
            (one, place(one, where))
            for one in known
            if one.operator == call.operator
            and tells(operator, one.dtype, one.scalars, call.dtype, form)
            and operator.kind_of_call(one.scalars) == kind
        ]
        return [
            TimedCall(name, Config(), at, seconds, f"{one.words} on {where}", one.launch.get(name, 0.0))
            for one, at in telling
            for name, seconds in one.ours.items()
        ]

    def of_family() -> dict[str, list[TimedCall]]:
        family = registry.family(call.operator)
        found: dict[str, list[TimedCall]] = defaultdict(list)
        for one in others:
            its = registry.operator(one.operator)
            if (
                one.operator != call.operator
                and registry.family(one.operator) == family
                and its.unit == operator.unit
                and tells(its, one.dtype, one.scalars, call.dtype, form)
            ):
                at = place(one, device)
                found[one.operator] += [
                    TimedCall(name, Config(), at, seconds, f"{one.words} on {device}", one.launch.get(name, 0.0))
                    for name, seconds in one.ours.items()
                ]
        return found

    siblings = [item for where, known in elsewhere.items() for item in timed(known, where)]
    seen = timed(others, device)
    if not seen and not siblings:
        names = {item.name for item in implementations if item.backend not in COMPARED_AS_IS}
        siblings = [item for times in of_family().values() for item in times if item.implementation in names]
    model = FamilyModel(operator, implementations, seen, siblings=siblings, family=of_family)
    fit = [item for item in implementations if item.name in call.ours]
    if len(fit) < 2:
        return None
    found = pick(model, fit, place(call, device))
    return beside_the_best(call, found.implementation.name, found.words)


def beside_the_best(call: Measured, name: str, how: str) -> Chosen | None:
    """What a choice costs; None where none of opforge's own kernels has a time."""
    times = call.in_a_row
    own = {name: value for name, value in times.items() if not name.startswith("torch")}
    if not own:
        return None
    best = min(own, key=lambda name: own[name])
    torch = next((value for name, value in times.items() if name.startswith("torch")), float("inf"))
    return Chosen(call, name, best, times[name] / own[best], times[name] / torch, how)


def judged(chosen: Sequence[Chosen], title: str, each: bool = True) -> bool:
    """Print what was lost (`each`) and the figures; whether they hold."""
    print(f"\n{title}")
    for item in sorted(chosen, key=lambda item: -max(item.over, item.beside_torch)) if each else ():
        if item.over > 1.02 or item.beside_torch > 1.03:
            beside = "" if item.beside_torch == 0 else f", {item.beside_torch:.2f} of PyTorch's time"
            print(f"  {item.call.words}: {item.name} takes {item.over:.3f} of {item.best}'s time{beside} ({item.how})")
    within = {limit: sum(item.over <= limit for item in chosen) for limit in (1.05, 1.10)}
    slower = sum(item.beside_torch > 1.03 for item in chosen)
    count = len(chosen)
    print(
        f"  {count} calls: {within[1.05]} within 5 % of the best of opforge's kernels "
        f"({within[1.05] / max(1, count):.1%}), {within[1.10]} within 10 %; ",
        end="",
    )
    print(f"PyTorch is faster by more than 3 % in {slower}")
    return count > 0 and within[1.05] >= 0.95 * count and within[1.10] == count and slower == 0


def as_tuned(call: Measured, device: str) -> Chosen | None:
    """What `opforge tune` chose for a call, by times that the search did not take; None where it chose nothing, or only
    one kernel has a time.
    """
    from opforge.registry import load
    from opforge.registry.tuned_choices import choice_for, shipped_path

    operator = _REGISTRY.setdefault("registry", load()).operator(call.operator)
    form, kind = operator.compute_dtype_of(call.dtype, call.scalars), operator.kind_of_call(call.scalars)
    axes = operator.completed(call.axes, call.scalars)
    chosen = choice_for(shipped_path(operator, device), form, axes, kind)
    if chosen is None or chosen.implementation not in call.ours or len(call.ours) == 1:
        return None
    return beside_the_best(call, chosen.implementation, f"tuned on {dict(chosen.axes or {})}")


def left_out(call: Measured, known: Iterable[Measured]) -> list[Measured]:
    """What is known without a call: its time in no dtype."""
    return [one for one in known if (one.operator, one.axes, one.layout) != (call.operator, call.axes, call.layout)]


def half_of(call: Measured) -> int:
    """0 or 1 for a workload, the same for all its dtypes, whatever else is recorded."""
    sizes = sorted((name, str(value)) for name, value in call.axes.items())
    return hashlib.sha256(f"{call.operator} {sizes} {call.layout}".encode()).digest()[-1] % 2


def harder(calls: Sequence[Measured], known: Sequence[Measured], device: str) -> None:
    """Print what is left of the figures where whole operators, and halves of the workloads, are not known."""
    for title, others in (
        ("each operator by its family's times alone", lambda call, one: one.operator != call.operator),
        ("each half of the workloads by the other's times", lambda call, one: half_of(one) != half_of(call)),
    ):
        found = [choose(call, [one for one in known if others(call, one)], device, {}) for call in calls]
        judged([item for item in found if item is not None], f"harder: {title}", each=False)


def records_of(descriptor: str) -> Path | None:
    """The records of a device in results/; None where there are none."""
    return next((file for end in ("gz", "xz") if (file := RESULTS / f"{descriptor}.jsonl.{end}").is_file()), None)


def siblings_of(descriptor: str) -> dict[str, list[Measured]]:
    """The times of every sibling of which results/ has records."""
    from opforge.machine import descriptors

    known = descriptors()
    alike = [name for name, spec in known.items() if spec.is_sibling_of(known[descriptor])]
    return {name: from_records(file) for name in alike if (file := records_of(name)) is not None}


def main() -> int:
    """What the words above say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, help="records to choose by (default: the device's in results/)")
    parser.add_argument("--times", type=Path, help="a file that --measure wrote")
    parser.add_argument("--measure", type=Path, help="time the forty shapes and write this file")
    parser.add_argument("--tuned", action="store_true", help="judge the choices of tuned/*.json")
    parser.add_argument("--grid", action="store_true", help="with --measure: the shape classes too")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--descriptor", help="the device that the times are of (default: nvidia-h200, or the file's)")
    parser.add_argument("--operator", action="append", default=[], help="these alone")
    parser.add_argument("--budget", type=float, default=400.0, help="seconds after which no shape is begun")
    parser.add_argument(
        "--without-sibling-call", action="store_true", help="leave the sibling's time of the same call out too"
    )
    given = parser.parse_args()
    if given.measure:
        measure(given.measure, given.device, given.grid, given.operator, given.budget)
        return 0
    device = given.descriptor or (json.loads(given.times.read_text())["device"] if given.times else "nvidia-h200")
    file = given.records or records_of(device)
    if file is None:
        parser.error(f"results/ has no records of {device}; name some with --records")
    known = from_records(file)
    calls, classes, title = known, [], f"each call of {file.name} left out in turn, in all its dtypes"
    if given.times is not None:
        calls, classes = from_times(given.times)
        title = f"shapes of {given.times.name} that are in no record"
    calls = [call for call in calls if not given.operator or call.operator in given.operator]
    if given.tuned:
        tuned = [item for call in calls if (item := as_tuned(call, device)) is not None]
        return int(not judged(tuned, f"choices of opforge tune, by the times of {file.name}"))
    siblings = siblings_of(device)
    ways: list[tuple[str, Elsewhere]] = [("by its own times alone", {})]
    if siblings:
        words = "those of the call left out too" if given.without_sibling_call else "of the call itself too"
        ways.append((f"with the times of {', '.join(siblings)}, {words}", siblings))
    good = False
    for words, elsewhere in ways:
        found = [
            choose(
                call,
                left_out(call, [*known, *classes]),
                device,
                {name: left_out(call, theirs) if given.without_sibling_call else theirs
                 for name, theirs in elsewhere.items()},
            )
            for call in calls
        ]  # fmt: skip
        good = judged([item for item in found if item is not None], f"{title}, {words}")
    if given.times is None:
        harder(calls, known, device)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
