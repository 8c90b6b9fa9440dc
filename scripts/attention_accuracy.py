"""How far attention is off its float64 oracle: baseline, window, dropout, and FP8 inputs in several scalings.

python scripts/attention_accuracy.py                                     the table and the advice, on this machine
python scripts/attention_accuracy.py --window-left 128 --dropout 0.1 --outliers 0.02 --page accuracy.html --json a.json
python scripts/attention_accuracy.py --history accuracy.jsonl            compared with the last run of the same study
python scripts/attention_accuracy.py --choices groups.json               the group size found is kept there, and used

baseline, window, dropout   the kernel in --dtype against the oracle on the float32 values it was rounded from; the
                            oracle drops the same weights
fp8 FORMAT SCALING          q, k and v stored as torch.float8 with static scales, made from the largest values of a
                            calibration sample (another seed), for the tensor, each channel of a head, or groups of
                            channels; then the kernel in float32. What leaves the format's range is clipped
... stored                  the output in that format too, with a dynamic scale: its own largest value

Smaller groups follow the channels more closely, and their scales come from fewer values, so more of what is new is
clipped: the search takes the smallest group size whose share of clipped elements is at most `clip_target`, else the
largest. Thresholds stand in scripts/attention_accuracy.toml.
"""

from __future__ import annotations

import argparse
import html
import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

THRESHOLDS = Path(__file__).resolve().with_suffix(".toml")
FORMATS = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
LOWEST, HIGHEST, PER_DECADE = -9, 2, 4
"""Decades of |error| in histograms, and bins of each."""
BINS = 64
"""Of the histograms of values that entropy is of."""


def drawn(options: argparse.Namespace, seed: int) -> list[Any]:
    """q, k and v in float32, normal; a share of the channels, the same for every seed, is so many times larger."""
    import torch

    make = torch.Generator().manual_seed(seed)
    shape = (options.batch, options.heads, options.length, options.dim)
    chosen = torch.rand(3, options.heads, 1, options.dim, generator=torch.Generator().manual_seed(1)) < options.outliers
    return [torch.randn(shape, generator=make) * (1 + (options.outlier_size - 1) * larger.float()) for larger in chosen]


def scales_of(calibration: Any, group: int | None, largest: float) -> Any:
    """One scale for each group of channels of a head, spread over its channels, [heads, 1, dim]; None: one for all."""
    size = calibration.abs().amax(dim=(0, 2), keepdim=True)[0]
    if group is None:
        return (size.amax() / largest).clamp(min=2.0**-126).expand(size.shape)
    grouped = size.unflatten(-1, (-1, group)).amax(dim=-1, keepdim=True).expand(*size.shape[:-1], -1, group)
    return (grouped.flatten(-2) / largest).clamp(min=2.0**-126)


def stored(values: Any, scale: Any, kind: str) -> Any:
    """The values as FP8 keeps them under a scale, in float32 again; clipped, not overflowing."""
    import torch

    from opforge.core.dtypes import DTYPES

    largest = DTYPES[kind].largest
    return (values / scale).clamp(-largest, largest).to(getattr(torch, kind)).float() * scale


def entropy(values: Any) -> float:
    """Of the histogram of the values between their ends, in nats."""
    counts = values.double().flatten().histc(BINS, float(values.min()), float(values.max()))
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * shares.log()).sum())


def divergence(actual: Any, expected: Any) -> float:
    """Kullback-Leibler, of the histogram of the result against the oracle's over the range of both, in nats; each bin
    counts one half more, so that none is empty.
    """
    low, high = (float(end(actual.double(), expected).item()) for end in (_least, _most))
    if not low < high:
        return 0.0
    one, other = (values.double().flatten().histc(BINS, low, high) + 0.5 for values in (actual, expected))
    one, other = one / one.sum(), other / other.sum()
    return float((one * (one / other).log()).sum())


def _least(one: Any, other: Any) -> Any:
    return one.amin().minimum(other.amin())


def _most(one: Any, other: Any) -> Any:
    return one.amax().maximum(other.amax())


def error_histogram(error: Any) -> list[int]:
    """Counts of |error| in bins of equal width in its logarithm; the first has all below, the last all above."""
    places = ((error.abs().clamp(min=1e-300).log10() - LOWEST) * PER_DECADE).floor().long()
    return [int(count) for count in places.clamp(0, (HIGHEST - LOWEST) * PER_DECADE - 1).flatten().bincount(
        minlength=(HIGHEST - LOWEST) * PER_DECADE)]  # fmt: skip


def figures(actual: Any, expected: Any) -> dict[str, Any]:
    """Everything that is said of a result against the oracle's."""
    import torch

    from opforge.verify import Expectation, compare
    from opforge.verify.extra.quantisation import sqnr_db

    anything = torch.full_like(expected, float("inf"))
    found = compare(actual, Expectation(output="out", dtype="float32", expected=expected, bound=anything)).metrics
    error = actual.double() - expected
    p50, p90, p99 = found.quantiles_abs
    return {
        "max_abs": found.max_abs,
        "mean_abs": found.mean_abs,
        "max_rel": found.max_rel,
        "mean_rel": found.mean_rel,
        "p50_abs": p50,
        "p90_abs": p90,
        "p99_abs": p99,
        "kl": divergence(actual, expected),
        "entropy": entropy(actual),
        "entropy_of_oracle": entropy(expected),
        "sqnr_db": sqnr_db(expected, actual),
        "histogram": error_histogram(error),
    }


def attended(version: str, tensors: Sequence[Any], scalars: Mapping[str, Any]) -> Any:
    """What the implementation of a name returns, its first output."""
    from opforge.dispatch import Choice, Chooser, Function
    from opforge.registry import load

    registry = load([])
    item = registry.implementation("attention", version)

    class One(Chooser):  # type: ignore[misc, unused-ignore]
        """The implementation that was asked for."""

        def choose(self, *_: Any, **__: Any) -> Choice:
            return Choice(implementation=item, config=item.default, why="asked for", passed_over=())

    return Function(registry.operator("attention"), One(registry))(*tensors, **scalars)[0]


def clipped(values: Sequence[Any], scales: Sequence[Any], kind: str) -> float:
    """The share of all elements that leave the range of the format."""
    from opforge.verify.extra.quantisation import clip_ratio

    return sum(clip_ratio(one, kind, scale) for one, scale in zip(values, scales, strict=True)) / len(values)


def study(options: argparse.Namespace, thresholds: Mapping[str, float], known: dict[str, int]) -> list[dict[str, Any]]:
    """Every variant with its figures."""
    import torch

    from opforge.core.dtypes import DTYPES
    from opforge.registry import load

    operator = load([]).operator("attention")
    tensors, calibration = drawn(options, options.seed), drawn(options, options.seed + 1)

    def oracle(scalars: Mapping[str, Any]) -> Any:
        values = operator.scalar_values(scalars)
        return operator.reference(*(tensor.double() for tensor in tensors), *[None] * 5, **values)[0]

    shared = {"causal": options.causal}
    rows = []
    variants: dict[str, dict[str, Any]] = {"baseline": shared}
    if options.window_left >= 0:
        variants["window"] = {**shared, "window_left": options.window_left, "causal": True}
    if options.dropout > 0:
        variants["dropout"] = {**shared, "dropout": options.dropout, "seed": options.seed}
    dtype = getattr(torch, options.dtype)
    for name, scalars in variants.items():
        made = attended(options.version, [tensor.to(dtype) for tensor in tensors], scalars)
        rows.append({"variant": name, **figures(made.float(), oracle(scalars))})
    expected = oracle(shared)
    for word in options.formats:
        kind = FORMATS[word]
        largest = DTYPES[kind].largest
        candidates = [size for size in sorted(options.group_candidates) if options.dim % size == 0]
        searched = {
            size: clipped(tensors, [scales_of(one, size, largest) for one in calibration], kind) for size in candidates
        }
        key = f"{word} {options.heads}x{options.length}x{options.dim} outliers {options.outliers:g}"
        fitting = [size for size in candidates if searched[size] <= thresholds["clip_target"]]
        group = known.get(key) or (fitting[0] if fitting else candidates[-1] if candidates else options.dim)
        known[key] = group
        for scaling, size in (("tensor", None), ("channel", 1), (f"group {group}", group)):
            scales = [scales_of(one, size, largest) for one in calibration]
            given = [stored(one, scale, kind) for one, scale in zip(tensors, scales, strict=True)]
            made = attended(options.version, given, shared)
            every = torch.cat([scale.flatten() for scale in scales])
            amax = torch.cat([one.abs().amax(dim=(0, 2)).flatten() for one in tensors])
            facts = {
                "clip_ratio": clipped(tensors, scales, kind),
                "amax_mean": float(amax.mean()),
                "amax_max": float(amax.max()),
                "scale_mean": float(every.mean()),
                "scale_max": float(every.max()),
                "candidates": searched if scaling.startswith("group") else {},
            }
            rows.append({"variant": f"fp8 {word} {scaling}", **facts, **figures(made, expected)})
            dynamic = made.abs().amax().clamp(min=2.0**-126) / largest
            rows.append({"variant": f"fp8 {word} {scaling} stored", **figures(stored(made, dynamic, kind), expected)})
    return rows


def _finer(rows: Sequence[dict[str, Any]], whole: dict[str, Any]) -> str:
    """Whether a scale for each channel or group does better than this one for the tensor, by the figures."""
    stem = whole["variant"].removesuffix("tensor")
    finer = [row for row in rows if row["variant"].startswith(stem) and "clip_ratio" in row and row is not whole]
    better = [row for row in finer if row["mean_abs"] < whole["mean_abs"]]
    if not finer or better:
        best = min(better, key=lambda row: float(row["mean_abs"]), default=None)
        return (
            "scale channels or groups"
            if best is None
            else f"{best['variant']} has {best['mean_abs']:.3g} of mean error"
        )
    return "and yet finer scales do worse, by what they clip of new values: leave it, or calibrate on more of them"


def advice(rows: Sequence[dict[str, Any]], last: Mapping[str, Any], thresholds: Mapping[str, float]) -> list[str]:
    """What the figures ask for, in words."""
    found = []
    tail = next(row["p99_abs"] / row["mean_abs"] for row in rows if row["variant"] == "baseline" and row["mean_abs"])
    for row in rows:
        name = row["variant"]
        clip, target = row.get("clip_ratio", 0.0), thresholds["clip_target"]
        if clip > target:
            found.append(
                f"{name}: {clip:.2%} is clipped (target {target:.2%}): take scales from more calibration values, "
                "larger groups, or a margin on the largest value"
            )
        own = row["p99_abs"] / row["mean_abs"] if row["mean_abs"] else 0.0
        if own > thresholds["tail_over_baseline"] * tail:
            found.append(
                f"{name}: p99 is {own:.1f} times the mean, the baseline's {tail:.1f} times: a long tail, look at "
                "single channels"
            )
        skew = row["amax_max"] / row["amax_mean"] if row.get("amax_mean") else 0.0
        if name.endswith(" tensor") and skew > thresholds["scale_max_over_mean"]:
            found.append(f"{name}: the largest channel is {skew:.1f} times the mean one: {_finer(rows, row)}")
        if row["sqnr_db"] < thresholds["least_sqnr_db"]:
            found.append(f"{name}: {row['sqnr_db']:.1f} dB of signal over error: keep this operand in 16 bits")
        before = last.get(name)
        if before and row["p99_abs"] > thresholds["p99_over_last"] * before["p99_abs"]:
            found.append(
                f"{name}: p99 is {row['p99_abs'] / before['p99_abs']:.2f} times that of the last run: a regression"
            )
    inputs = [row for row in rows if row["variant"].startswith("fp8") and not row["variant"].endswith("stored")]
    if inputs:
        best = min(inputs, key=lambda row: float(row["mean_abs"]))
        found.append(f"least mean error of the FP8 variants: {best['variant']} ({best['mean_abs']:.3g})")
    return found


COLUMNS = (
    "max_abs",
    "mean_abs",
    "max_rel",
    "mean_rel",
    "p50_abs",
    "p90_abs",
    "p99_abs",
    "kl",
    "entropy",
    "sqnr_db",
    "clip_ratio",
)
SCALES = ("amax_mean", "amax_max", "scale_mean", "scale_max")


def text(rows: Sequence[dict[str, Any]], advised: Sequence[str]) -> str:
    """The figures as a table in Markdown, scales as another, and the advice."""
    lines = [f"| variant | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for row in rows:
        cells = ["" if row.get(name) is None else f"{row[name]:.3g}" for name in COLUMNS]
        lines.append(f"| {row['variant']} | {' | '.join(cells)} |")
    scaled = [row for row in rows if "scale_max" in row]
    if scaled:
        lines += ["", f"| scales | {' | '.join(SCALES)} | group: clipped |", "|---" * (len(SCALES) + 2) + "|"]
        for row in scaled:
            searched = ", ".join(f"{size}: {share:.2%}" for size, share in row["candidates"].items())
            lines.append(f"| {row['variant']} | {' | '.join(f'{row[name]:.3g}' for name in SCALES)} | {searched} |")
    return "\n".join([*lines, "", *(f"- {line}" for line in advised)])


WIDTH, PANEL, LEFT, RIGHT, TOP = 760.0, 220.0, 70.0, 210.0, 30.0
COLOURS = ("#4269d0", "#e4572e", "#3a923a", "#9c6ade", "#c98a00", "#17a2b8", "#d6336c", "#6c757d")
STYLE = "text{font:12px sans-serif;fill:#222}.grid{stroke:#ddd}.end{text-anchor:end}.middle{text-anchor:middle}"


def picture(rows: Sequence[dict[str, Any]]) -> str:
    """|error| of each variant: the share of elements in each bin above, beyond each size below (1 - CDF); log-log."""
    from opforge.report import svg

    shown = [row for row in rows if not row["variant"].endswith("stored")]
    across = svg.linear(LOWEST, HIGHEST, LEFT, WIDTH - RIGHT)
    parts = [svg.element("style", STYLE), svg.text("share of elements by |error|; below: share beyond it", LEFT, 18)]
    for panel in (0, 1):
        top = TOP + panel * (PANEL + 30)
        up = svg.logarithmic(1e-5, 1.0, top + PANEL, top)
        for tick in svg.decades(1e-5, 1.0):
            parts.append(svg.line(LEFT, up(tick), WIDTH - RIGHT, up(tick), "grid"))
            parts.append(svg.text(f"{tick:g}", LEFT - 6, up(tick) + 4, "end"))
        for place, row in enumerate(shown):
            total = sum(row["histogram"])
            shares = [count / total for count in row["histogram"]]
            values = shares if panel == 0 else [sum(shares[first:]) for first in range(len(shares))]
            points = [
                f"{svg.coordinate(across(LOWEST + (at + 0.5 * (panel == 0)) / PER_DECADE))} {svg.coordinate(up(value))}"
                for at, value in enumerate(values)
                if value >= 1e-5
            ]
            colour, dash = COLOURS[place % len(COLOURS)], "none" if place < len(COLOURS) else "6 3"
            stroke = {"fill": "none", "stroke": colour, "stroke_width": 1.6, "stroke_dasharray": dash}
            parts.append(svg.element("path", d="M" + "L".join(points), **stroke))
            if panel == 0:
                key = top + 12 + 17 * place
                parts.append(svg.element("path", d=f"M{WIDTH - RIGHT + 6:g} {key - 4:g}h20", **stroke))
                parts.append(svg.text(row["variant"], WIDTH - RIGHT + 30, key))
    floor = TOP + 2 * PANEL + 30
    for decade in range(LOWEST, HIGHEST + 1):
        parts.append(svg.text(f"1e{decade}", across(decade), floor + 18, "middle"))
    return svg.picture(WIDTH, floor + 30, "attention's errors", *parts) + "\n"


def last_of(path: Path | None, key: str) -> dict[str, Any]:
    """The variants of the last run of the same study, by name."""
    if path is None or not path.exists():
        return {}
    runs = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    same = [run for run in runs if run["study"] == key]
    return {row["variant"]: row for row in same[-1]["rows"]} if same else {}


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name, default in (("batch", 1), ("heads", 4), ("length", 512), ("dim", 64), ("window-left", -1), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--version", default="torch_definition", help="the implementation, by name")
    parser.add_argument("--formats", nargs="*", default=list(FORMATS), choices=list(FORMATS))
    parser.add_argument("--outliers", type=float, default=0.0, help="share of channels that are larger")
    parser.add_argument("--outlier-size", type=float, default=20.0, help="how many times")
    parser.add_argument(
        "--group-candidates", type=lambda word: [int(part) for part in word.split(",")], default="4,8,16,32,64"
    )
    parser.add_argument("--thresholds", type=Path, default=THRESHOLDS, help="a TOML file of them")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="a threshold for this run")
    parser.add_argument("--choices", type=Path, help="group sizes by study: used where there, written back")
    parser.add_argument("--history", type=Path, help="JSON lines: the last run is compared with, this one appended")
    for name in ("json", "svg", "page"):
        parser.add_argument(f"--{name}", type=Path)
    return parser


def main() -> int:
    options = arguments().parse_args()
    thresholds = tomllib.loads(options.thresholds.read_text())
    for word in options.set:
        name, _, value = word.partition("=")
        if name not in thresholds:
            raise SystemExit(f"No threshold is called {name!r}. Known: {', '.join(thresholds)}.")
        thresholds[name] = float(value)
    known = json.loads(options.choices.read_text()) if options.choices and options.choices.exists() else {}
    shape = "x".join(str(getattr(options, name)) for name in ("batch", "heads", "length", "dim"))
    key = (
        f"{options.version} {options.dtype} {shape} causal={options.causal} window={options.window_left} "
        f"dropout={options.dropout:g} outliers={options.outliers:g}x{options.outlier_size:g} seed={options.seed}"
    )
    rows = study(options, thresholds, known)
    words = text(rows, advice(rows, last_of(options.history, key), thresholds))
    print(f"{key}\n\n{words}")
    if options.choices:
        options.choices.write_text(json.dumps(known, indent=1) + "\n")
    if options.history:
        with options.history.open("a") as log:
            log.write(json.dumps({"study": key, "rows": rows}) + "\n")
    if options.json:
        options.json.write_text(json.dumps({"study": key, "thresholds": thresholds, "rows": rows}, indent=1))
    if options.svg:
        options.svg.write_text(picture(rows))
    if options.page:
        head = "<!doctype html><meta charset=utf-8><title>Attention's accuracy</title>"
        body = f"<h1>Attention's accuracy</h1><p>{html.escape(key)}</p>{picture(rows)}<pre>{html.escape(words)}</pre>"
        options.page.write_text(head + "<style>body{font:14px sans-serif;max-width:1100px}</style>" + body)
    return 0


if __name__ == "__main__":
    sys.exit(main())
