"""Attention's error against its block of keys: what it costs an online softmax to rescale its sums more often.

    python scripts/attention_error.py                              Markdown; cpp_blocked on a CPU, seconds
    python scripts/attention_error.py --device cuda                triton_twoloops and triton_online
    python scripts/attention_error.py --json error.json --svg error.svg
    python scripts/attention_error.py --from error.json --svg error.svg      draws what was measured before

128 queries against 4096 keys, 2 heads of 64, the oracle in float64 of the same rounded inputs. "Alike": scores are
normal numbers, so the running maximum settles within the first blocks. "Rising": scores grow with the key by 24 in
all, so that it is another in almost every block, and all sums are rescaled each time. An error is the root mean square
over that of the result; in brackets the largest one, over the same. Only differences between sizes are of the block:
the rest is the inputs' and the weights' rounding.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "scripts")]

AXES = {"batch": 1, "kv_heads": 2, "group": 1, "queries": 128, "keys": 4096, "head_dim": 64, "value_dim": 64}
RISE = 24.0
"""How much scores grow from the first key to the last: 6 for each quarter of the keys."""
BLOCKS: Mapping[str, Mapping[str, tuple[str, tuple[int, ...]]]] = {
    "cpu": {"cpp_blocked": ("KEYS", (64, 128, 256, 512))},
    "cuda": {"triton_twoloops": ("BLOCK_N", (16, 32, 64, 128)), "triton_online": ("BLOCK_N", (16, 32, 64, 128))},
}
DTYPES = ("float32", "float16", "bfloat16")
COLOURS = {"float32": "#4269d0", "float16": "#c99700", "bfloat16": "#e4572e"}


def inputs_of(scores: str, dtype: str, device: str) -> list[Any]:
    """q, k, v and nothing beside them; the same for every block."""
    import torch

    made = torch.Generator().manual_seed(0)
    heads, (rows, dim) = (1, AXES["kv_heads"]), (AXES["queries"], AXES["head_dim"])
    q = torch.randn(*heads, rows, dim, generator=made)
    k, v = (torch.randn(*heads, AXES["keys"], dim, generator=made) for _ in range(2))
    if scores == "rising":
        # scores are divided by sqrt(64)
        q[..., 0] = 8.0
        k[..., 0] = torch.linspace(0.0, RISE, AXES["keys"])
    return [*(tensor.to(getattr(torch, dtype)).to(device) for tensor in (q, k, v)), *[None] * 5]


def errors_of(registry: Any, name: str, config: Mapping[str, int], dtype: str, scores: str, device: str) -> Any:
    """(root mean square, largest) error of a version over the root mean square of the result, or why there is none."""
    from direct import prepared

    from opforge.core.definition.implementation import Config

    operator, item = registry.operator("attention"), registry.implementation("attention", name)
    tensors = inputs_of(scores, dtype, device)
    values = {**item.default.as_dict(), **config}
    call = prepared(operator, item, tensors, AXES, dtype, operator.scalar_values({}), Config(tuple(values.items())))
    if isinstance(call, str):
        return call
    q, k, v = (tensor.double() for tensor in tensors[:3])
    oracle = ((q @ k.transpose(-1, -2)) / AXES["head_dim"] ** 0.5).softmax(-1) @ v
    off, size = call(tensors)[0].double() - oracle, oracle.square().mean().sqrt()
    return (off.square().mean().sqrt() / size).item(), (off.abs().max() / size).item()


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each version, kind of scores and dtype, a column for each size of the block of keys."""
    sizes = sorted({row["block"] for row in rows})
    lines = [f"| version, scores, dtype | {' | '.join(map(str, sizes))} |", "|---" * (len(sizes) + 1) + "|"]
    for key in dict.fromkeys((row["version"], row["scores"], row["dtype"]) for row in rows):
        found = {row["block"]: row for row in rows if (row["version"], row["scores"], row["dtype"]) == key}
        cells = [f"{found[size]['rms']:.2e} ({found[size]['largest']:.1e})" if size in found else "" for size in sizes]
        lines.append(f"| {', '.join(key)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def drawn(rows: Sequence[Mapping[str, Any]], title: str) -> str:
    """Root mean square errors over the block of keys, a line for each dtype: scores alike whole, rising ones dashed."""
    from opforge.report import svg

    width, left, right, top, height = 620.0, 80.0, 150.0, 34.0, 250.0
    sizes = sorted({row["block"] for row in rows})
    every = [row["rms"] for row in rows]
    across = svg.logarithmic(sizes[0], sizes[-1], left, width - right)
    up = svg.logarithmic(min(every) / 2, max(every) * 2, top + height, top)
    style = "text{font:12px sans-serif;fill:#222}.grid{stroke:#ddd}.end{text-anchor:end}.middle{text-anchor:middle}"
    parts = [svg.element("style", style), svg.text(title, left, 18)]
    for tick in svg.decades(min(every) / 2, max(every) * 2):
        parts += [
            svg.line(left, up(tick), width - right, up(tick), "grid"),
            svg.text(f"{tick:.0e}", left - 8, up(tick) + 4, "end"),
        ]
    for dtype, scores in dict.fromkeys((row["dtype"], row["scores"]) for row in rows):
        line = sorted((row["block"], row["rms"]) for row in rows if (row["dtype"], row["scores"]) == (dtype, scores))
        path = "M" + "L".join(f"{svg.coordinate(across(x))} {svg.coordinate(up(y))}" for x, y in line)
        dashes = {"stroke_dasharray": "5 4"} if scores == "rising" else {}
        parts.append(svg.element("path", d=path, fill="none", stroke=COLOURS[dtype], stroke_width=2, **dashes))
        if scores == "alike":
            parts.append(svg.text(dtype, width - right + 8, up(line[-1][1]) + 4))
    parts += [svg.text(str(size), across(size), top + height + 18, "middle") for size in sizes]
    parts.append(svg.text("keys in a block; error over the result, dashed: rising scores", left, top + height + 36))
    return svg.picture(width, top + height + 44, title, *parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", choices=sorted(BLOCKS))
    parser.add_argument("--json", type=Path, help="keep the numbers here")
    parser.add_argument("--from", dest="kept", type=Path, help="measure nothing; show what this file holds")
    parser.add_argument("--svg", type=Path, help="draw the first version here")
    options = parser.parse_args()
    if options.kept:
        kept = json.loads(options.kept.read_text())
    else:
        import torch

        from opforge.registry import load

        registry, rows = load([]), []
        for name, (parameter, sizes) in BLOCKS[options.device].items():
            for scores in ("alike", "rising"):
                for dtype in DTYPES:
                    for size in sizes:
                        found = errors_of(registry, name, {parameter: size}, dtype, scores, options.device)
                        if isinstance(found, str):
                            print(f"{name}, {dtype}, {parameter}={size}: {found}")
                            continue
                        rows.append(
                            {"version": name, "scores": scores, "dtype": dtype, "block": size}
                            | dict(zip(("rms", "largest"), found, strict=True))
                        )
        where = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
        kept = {"device": where, "torch": torch.__version__, "rows": rows}
    print(f"{kept['device']}, PyTorch {kept['torch']}\n\n{table(kept['rows'])}")
    if options.json:
        options.json.write_text(json.dumps(kept, indent=1))
    if options.svg:
        first = [row for row in kept["rows"] if row["version"] == kept["rows"][0]["version"]]
        options.svg.write_text(drawn(first, f"attention, {first[0]['version']}: error against the block of keys"))


if __name__ == "__main__":
    main()
