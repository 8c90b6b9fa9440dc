"""Attention on a CPU: the C++ ladder beside PyTorch's scaled_dot_product_attention, with the memory that each takes.

python scripts/attention_cpu.py                        the table; --json FILE keeps it, --svg FILE draws the curve
python scripts/attention_cpu.py --from FILE            the table and the picture of a run that was kept
python scripts/attention_cpu.py --versions cpp_blocked --dtypes float32 --head-dims 64     a part of it

A version of opforge's is called as a user calls `opforge.ops.attention`, outputs made by the call, with dispatch told
which kernel to take (`opforge bench attention` lets it choose); PyTorch as `F.scaled_dot_product_attention`. Calls of a
row are interleaved, in an order drawn anew for each turn; what is told is the median, and as ratio the median of the
turns' own ratios. Memory is the largest resident set of the process during a call, less what it was before, in a run of
its own. Every version's result is held against PyTorch's in float64 first. Wants a quiet machine.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

LADDER = ("cpp_threekernels", "cpp_twokernels", "cpp_online", "cpp_blocked")
LENGTHS = (512, 1024, 2048, 4096)
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
ROOM = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 3e-3}
"""How far a result may be from PyTorch's in float64, of values around 1: a check of the script, not of the kernels."""


def resident(field: str) -> int:
    """A size of this process from /proc, in bytes: VmRSS now, VmHWM at its highest."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def peak_of(call: Callable[[], Any]) -> int | None:
    """Bytes that a call adds to the resident set at its highest; None where the system does not tell."""
    if not CLEAR.exists():
        return None
    # what was freed before is still resident, and would be taken again
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR.write_text("5")
    before = resident("VmRSS")
    call()
    return max(0, resident("VmHWM") - before)


def functions(versions: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """Attention by each version's name, through dispatch."""
    from opforge.dispatch import Choice, Chooser, Function
    from opforge.registry import load

    registry = load([])
    operator = registry.operator("attention")

    class One(Chooser):  # type: ignore[misc, unused-ignore]
        """The implementation of a name, whatever else there is."""

        def __init__(self, name: str) -> None:
            super().__init__(registry)
            self.item = registry.implementation("attention", name)

        def choose(self, *_: Any, **__: Any) -> Choice:
            return Choice(implementation=self.item, config=self.item.default, why="asked for", passed_over=())

    return {name: Function(operator, One(name)) for name in versions}


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
"""`cpu` counts the seconds that the process had, all threads together: what neighbours on the machine take is left out.
"""


def row(
    versions: dict[str, Any], sizes: tuple[int, int, int], causal: bool, dtype: str, turns: int, clock: str
) -> dict[str, Any]:
    """Times, ratios to PyTorch, and peaks of one call."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    heads, length, dim = sizes
    make = torch.Generator().manual_seed(length + dim)
    given = [torch.randn(1, heads, length, dim, generator=make).to(getattr(torch, dtype)) for _ in range(3)]
    calls: dict[str, Callable[[], Any]] = {
        name: lambda function=function: function(*given, causal=causal)[0] for name, function in versions.items()
    }
    calls["sdpa"] = lambda: scaled_dot_product_attention(*given, is_causal=causal)
    wanted = scaled_dot_product_attention(*(tensor.double() for tensor in given), is_causal=causal)
    for name, call in calls.items():
        off = float((call().double() - wanted).abs().max())
        if not off <= ROOM[dtype]:
            raise SystemExit(f"{name} is off by {off:.2g} at {sizes}, causal={causal}, {dtype}: nothing is timed")
    del wanted
    peaks = {name: peak_of(call) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name in random.sample(sorted(calls), len(calls)):
            began = CLOCKS[clock]()
            calls[name]()
            samples[name].append(CLOCKS[clock]() - began)
    ratios = {
        name: statistics.median(theirs / own for theirs, own in zip(samples["sdpa"], found, strict=True))
        for name, found in samples.items()
    }
    return {
        "heads": heads,
        "length": length,
        "dim": dim,
        "causal": causal,
        "dtype": dtype,
        "flops": 4 * heads * dim * (length * (length + 1) // 2 if causal else length * length),
        "seconds": {name: statistics.median(found) for name, found in samples.items()},
        "samples": samples,
        "ratio": ratios,
        "peak_bytes": peaks,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Milliseconds, the ratio to PyTorch (above 1: faster), and MB beside what was there, of every version."""
    names = [name for name in (*LADDER, "sdpa") if any(name in row["seconds"] for row in rows)]
    lines = [f"| dtype, heads, length, dim | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for item in rows:
        cells = []
        for name in names:
            if name not in item["seconds"]:
                cells.append("")
                continue
            peak = item["peak_bytes"][name]
            ratio = "" if name == "sdpa" else f" ({item['ratio'][name]:.2f})"
            memory = "" if peak is None else f", {peak / 1e6:.1f} MB"
            cells.append(f"{item['seconds'][name] * 1e3:.1f} ms{ratio}{memory}")
        mask = "causal" if item["causal"] else "full"
        lines.append(
            f"| {item['dtype']}, {item['heads']}, {item['length']}, {item['dim']}, {mask} | {' | '.join(cells)} |"
        )
    for name in names[:-1]:
        found = [row["ratio"][name] for row in rows if name in row["ratio"]]
        lines.append(
            f"\n{name}: {statistics.geometric_mean(found):.2f}x PyTorch as geometric mean of {len(found)} calls, "
            f"{min(found):.2f} at the least."
        )
    return "\n".join(lines)


WIDTH, PANEL, LEFT, RIGHT, TOP, GAP = 760.0, 230.0, 80.0, 200.0, 34.0, 40.0
COLOURS = dict(zip((*LADDER, "sdpa"), ("#4269d0", "#e4572e", "#3a923a", "#9c6ade", "#222222"), strict=True))
STYLE = "text{font:12px sans-serif;fill:#222}.grid{stroke:#ddd}.end{text-anchor:end}.middle{text-anchor:middle}"
LEAST_BYTES = 1e5
"""Below it a peak is drawn at its edge: pages of 4 KB and other threads are as much."""


def picture(rows: Sequence[dict[str, Any]]) -> str:
    """The curve over the lengths as SVG, time above and memory below, of the first dtype and head dimension, full."""
    dtype, dim, heads = (rows[0][name] for name in ("dtype", "dim", "heads"))
    kept = [item for item in rows if (item["dtype"], item["dim"], item["causal"]) == (dtype, dim, False)]
    return curve(kept, f"attention on a CPU: {heads} heads of {dim}, {dtype}, no mask", COLOURS)


def curve(kept: Sequence[Mapping[str, Any]], title: str, colours: Mapping[str, str]) -> str:
    """Seconds and peak bytes of each row's calls over its length as SVG, a line for each name that has a colour."""
    from opforge.core.language import units
    from opforge.report import svg

    lengths = sorted({item["length"] for item in kept})
    across = svg.logarithmic(lengths[0], max(lengths[-1], lengths[0] + 1), LEFT, WIDTH - RIGHT)
    parts = [svg.element("style", STYLE), svg.text(title, LEFT, 18)]

    def panel(top: float, values: dict[str, list[tuple[int, float]]], words: Callable[[float], str]) -> None:
        every = [value for line in values.values() for _, value in line]
        up = svg.logarithmic(min(every) / 1.2, max(every) * 1.2, top + PANEL, top)
        for tick in svg.decades(min(every) / 1.2, max(every) * 1.2):
            parts.append(svg.line(LEFT, up(tick), WIDTH - RIGHT, up(tick), "grid"))
            parts.append(svg.text(words(tick), LEFT - 8, up(tick) + 4, "end"))
        for place, (name, line) in enumerate(values.items()):
            points = [f"{svg.coordinate(across(x))} {svg.coordinate(up(y))}" for x, y in line]
            parts.append(
                svg.element("path", d="M" + "L".join(points), fill="none", stroke=colours[name], stroke_width=2)
            )
            key = top + 14 + 18 * place
            parts.append(
                svg.element("path", d=f"M{WIDTH - RIGHT + 6:g} {key - 4:g}h20", stroke=colours[name], stroke_width=2)
            )
            parts.append(svg.text(name, WIDTH - RIGHT + 30, key))

    names = [name for name in colours if name in kept[0]["seconds"]]
    panel(TOP, {name: [(item["length"], item["seconds"][name]) for item in kept] for name in names}, units.seconds)
    memory = {
        name: [(item["length"], max(item["peak_bytes"][name] or 0, LEAST_BYTES)) for item in kept] for name in names
    }
    lower = TOP + PANEL + GAP
    panel(lower, memory, lambda value: f"{value / 1e6:g} MB")
    for length in lengths:
        parts.append(svg.text(str(length), across(length), lower + PANEL + 18, "middle"))
    parts.append(
        svg.text("queries and keys; time above, peak memory beside the inputs below", LEFT, lower + PANEL + 36)
    )
    return svg.picture(WIDTH, lower + PANEL + 44, title, *parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--versions", nargs="+", default=list(LADDER), choices=LADDER)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=sorted(ROOM))
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS))
    parser.add_argument("--head-dims", nargs="+", type=int, default=[64, 128])
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--clock", default="wall", choices=sorted(CLOCKS), help="cpu: for a machine that is not quiet")
    parser.add_argument("--json", type=Path, help="keep every sample here")
    parser.add_argument("--from", dest="kept", type=Path, help="measure nothing; show what this file holds")
    parser.add_argument("--svg", type=Path, help="draw the curve over the lengths here")
    options = parser.parse_args()
    if options.kept:
        rows = json.loads(options.kept.read_text())["rows"]
    else:
        import torch

        versions, rows = functions(options.versions), []
        for dtype in options.dtypes:
            for dim in options.head_dims:
                for length in options.lengths:
                    for causal in (False, True):
                        found = row(versions, (options.heads, length, dim), causal, dtype, options.turns, options.clock)
                        rows.append(found)
                        if options.json:
                            machine = {
                                "torch": torch.__version__,
                                "threads": torch.get_num_threads(),
                                "clock": options.clock,
                            }
                            options.json.write_text(json.dumps({**machine, "rows": rows}))
    print(table(rows))
    if options.svg:
        options.svg.write_text(picture(rows))


if __name__ == "__main__":
    main()
