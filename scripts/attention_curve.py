"""Attention's ladder on a GPU: time and peak memory over the length, and windows over long rows.

    python scripts/attention_curve.py                        Markdown tables; half a minute
    python scripts/attention_curve.py --json curve.json
    python scripts/attention_curve.py --steps tilelang_edges triton_twoloops     these beside PyTorch alone
    python scripts/attention_curve.py --from curve.json --svg curve.svg      draws what was measured before

The ladder is timed at 512 to 4096 queries and keys, 4 x 16 heads of 64 in bfloat16, causal and not; windows of 1024
keys at 8192 to 65536, one entry of 16 heads of 128. Interleaved, medians, as CUDA graphs where that works, by
scripts/direct.py. Memory is what PyTorch's allocator had at the most during a call beyond the inputs, the results among
it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "scripts")]

LADDER = ("torch_definition", "triton_online", "triton_twoloops", "triton_gluon", "cuda_wgmma", "tilelang_edges")
WINDOWED = ("triton_twoloops", "triton_gluon", "cuda_wgmma")
WINDOW = 1024
COLOURS = dict(
    zip((*LADDER, "sdpa"), ("#9c6ade", "#e4572e", "#3a923a", "#4269d0", "#c99700", "#e87ba4", "#222222"), strict=True)
)


def row_of(registry: Any, names: Sequence[str], axes: Mapping[str, int], given: Mapping[str, Any], options: Any) -> Any:
    """Seconds, bytes and reasons of one call by who computes it; SDPA as PyTorch chooses where there is no window."""
    import torch
    from attention_times import config_of, inputs_of
    from direct import copies_of, interleaved, kernel_errors, prepared, reason_of

    from opforge.core.definition.implementation import Config

    operator = registry.operator("attention")
    scalars = operator.scalar_values(given)
    tensors = inputs_of(axes, "bfloat16", options.device)
    calls: dict[str, Callable[[Sequence[Any]], Any]] = {}
    notes: dict[str, str] = {}
    memory: dict[str, int] = {}
    if given.get("window_left", -1) < 0:
        calls["sdpa"] = lambda some: torch.nn.functional.scaled_dot_product_attention(
            *some[:3], is_causal=bool(scalars["causal"])
        )
    for name in names:
        item = registry.implementation("attention", name)
        asked = config_of(name, axes)
        try:
            call = prepared(
                operator,
                item,
                tensors,
                axes,
                "bfloat16",
                scalars,
                Config(values=tuple(asked.items())) if asked else None,
            )
        except kernel_errors() as error:
            notes[name] = reason_of(error)
            continue
        if isinstance(call, str):
            notes[name] = call
            continue
        calls[name] = call
    results = sum(
        tensors[0][..., :1].numel() * size for size in (2 * axes["value_dim"], 4)
    )  # out in 16 bits, lse in 32: allocated before for kernels that are given their outputs
    for name, call in list(calls.items()):
        try:
            call(tensors)
            if options.device == "cuda":
                torch.cuda.synchronize()
                before = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
                made = call(tensors)
                torch.cuda.synchronize()
                grown = torch.cuda.max_memory_allocated() - before
                del made
                memory[name] = grown if name in ("sdpa", "torch_definition") else grown + results
        except kernel_errors() as error:
            notes[name] = reason_of(error)
            del calls[name]
    times = interleaved(calls, copies_of(tensors), options.device, turns=options.turns)
    return {
        "keys": axes["keys"], "causal": bool(scalars["causal"]),
        "flops": operator.cost(axes, "bfloat16", scalars).flops, "seconds": times.seconds, "memory": memory,
        "notes": notes,
    }  # fmt: skip


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Milliseconds, TFLOP/s of what is seen, and MB at the most of each call."""
    names = list(dict.fromkeys(name for row in rows for name in row["seconds"]))
    lines = [
        f"{title}: milliseconds (TFLOP/s), MB",
        "",
        f"| length | {' | '.join(names)} |",
        "|---" * (len(names) + 1) + "|",
    ]
    for row in rows:
        cells = []
        for name in names:
            if name not in row["seconds"]:
                cells.append("")
                continue
            seconds, bytes_ = row["seconds"][name], row["memory"].get(name)
            held = "" if bytes_ is None else f", {bytes_ / 1e6:.0f} MB"
            cells.append(f"{seconds * 1e3:.3f} ({row['flops'] / seconds / 1e12:.0f}){held}")
        lines.append(f"| {row['keys']}{', causal' if row['causal'] else ''} | {' | '.join(cells)} |")
    notes = sorted({f"- {name}: {why}" for row in rows for name, why in row["notes"].items()})
    return "\n".join([*lines, *([""] if notes else []), *notes])


def drawn(path: Path | None, ladder: Sequence[Mapping[str, Any]], where: str) -> None:
    """The ladder without a mask as SVG."""
    if path is None:
        return
    from attention_cpu import curve

    rows = [{"length": row["keys"], "peak_bytes": row["memory"], **row} for row in ladder if not row["causal"]]
    path.write_text(curve(rows, f"attention on {where}: 4 x 16 heads of 64, bfloat16, no mask", COLOURS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", nargs="+", default=list(LADDER), choices=LADDER, help="of the ladder, these alone")
    parser.add_argument("--small", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--json", type=Path, help="where the numbers go")
    parser.add_argument("--from", dest="kept", type=Path, help="measure nothing; draw what this file holds")
    parser.add_argument("--svg", type=Path, help="draw the ladder without a mask here")
    options = parser.parse_args()
    if options.kept:
        held = json.loads(options.kept.read_text())
        drawn(options.svg, held["ladder"], held["device"])
        return

    import torch

    from opforge.registry import load

    registry = load([])
    where = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    print(f"{where}, PyTorch {torch.__version__}\n")

    def measured(names: Sequence[str], batch: int, dim: int, lengths: Sequence[int], asked: Sequence[Any]) -> list[Any]:
        rows = []
        for length in lengths:
            size = min(length, 96) if options.small else length
            axes = {"batch": 1 if options.small else batch, "kv_heads": 2 if options.small else 16, "group": 1}
            axes |= {"queries": size, "keys": size, "head_dim": dim, "value_dim": dim}
            rows += [row_of(registry, names, axes, given, options) for given in asked]
        return rows

    ladder = measured(options.steps, 4, 64, (512, 1024, 2048, 4096), ({}, {"causal": True}))
    print(table("4 x 16 heads of 64", ladder), flush=True)
    windowed = [name for name in WINDOWED if name in options.steps]
    asked = ({"causal": True, "window_left": WINDOW - 1},)
    windows = measured(windowed, 1, 128, (8192, 16384, 32768, 65536), asked) if windowed else []
    if windowed:
        print(f"\n{table(f'16 heads of 128, windows of {WINDOW} keys', windows)}")
    drawn(options.svg, ladder, where)
    if options.json:
        kept = {"device": where, "torch": torch.__version__, "ladder": ladder, "windows": windows}
        options.json.write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
