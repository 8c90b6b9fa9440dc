"""Attention of packed sequences on a GPU: TFLOP/s of each kernel, and of the same work without packing.

python scripts/varlen_times.py                       a table; --json FILE keeps it; --configs: other tunables
python scripts/varlen_times.py --device cpu --small  does it run? Tiny sizes, and what works on a CPU

Calls of a row are interleaved in one process, as CUDA graphs where that works. Lengths grow evenly, as those of the
operator's workloads do. `torch_eager` is PyTorch's FlashAttention-2 with cumulative lengths, where it takes the call;
it reads lengths on the host, so it is called, not captured. `unpadded` is `triton_twoloops` of the operator attention
on sequences of one length with as many FLOPs.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

CONFIGS: tuple[Mapping[str, int], ...] = (
    {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3},
    {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3},
    {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3},
)


def tensors_for(axes: Mapping[str, int], dtype: Any, device: str) -> list[Any]:
    """Inputs of a call of sequences whose lengths grow evenly."""
    import torch

    heads, sequences = axes["kv_heads"] * axes["group"], axes["bounds"] - 1
    shapes = (
        (axes["total_q"], heads, axes["head_dim"]),
        (axes["total_k"], axes["kv_heads"], axes["head_dim"]),
        (axes["total_k"], axes["kv_heads"], axes["value_dim"]),
    )
    place = torch.arange(axes["bounds"], device=device)
    ends = [
        (place * (place + 1) * axes[total] // (sequences * (sequences + 1))).int() for total in ("total_q", "total_k")
    ]
    return [*(torch.randn(shape, device=device).to(dtype) for shape in shapes), *ends]


def row(registry: Any, operator: Any, workload: Any, axes: Any, options: Any) -> dict[str, Any]:
    """Times of one workload, and how far the kernel is off PyTorch's."""
    import torch
    from direct import interleaved, kernel_errors, prepared, reason_of

    from opforge.core.definition.implementation import Config

    dtype, scalars = options.dtype, operator.scalar_values(workload.scalars)
    tensors = tensors_for(axes, getattr(torch, dtype), options.device)
    seconds: dict[str, float] = {}
    notes: dict[str, str] = {}
    results: dict[str, Any] = {}
    wanted: list[tuple[str, str, Any]] = [(name, name, None) for name in ("triton_varlen", "torch_eager")]
    if options.configs:
        wanted += [
            (f"triton_varlen {' '.join(map(str, c.values()))}", "triton_varlen", Config(values=tuple(c.items())))
            for c in CONFIGS
        ]
    calls: dict[str, Any] = {}
    for label, name, config in wanted:
        try:
            call = prepared(
                operator, registry.implementation(operator.name, name), tensors, axes, dtype, scalars, config
            )
            if isinstance(call, str):
                notes[label] = call
                continue
            out, lse = call(tensors)
            results[label] = out.clone(), lse.clone()
            calls[label] = call
        except kernel_errors() as error:
            notes[label] = reason_of(error)
    if "torch_eager" in results:
        for label in results.keys() - {"torch_eager"}:
            off = [
                float((one.float() - other.float()).abs().nan_to_num(posinf=0.0).max())
                for one, other in zip(results[label], results["torch_eager"], strict=True)
            ]
            notes[label] = f"differs from torch_eager by {off[0]:.2g}, lse {off[1]:.2g}"
    captured = {label: call for label, call in calls.items() if label != "torch_eager"}
    seconds |= interleaved(captured, [tensors, tensors], options.device, turns=options.turns).seconds
    if "torch_eager" in calls:
        only = {"torch_eager": calls["torch_eager"]}
        seconds |= interleaved(only, [tensors, tensors], options.device, graphs=False, turns=options.turns).seconds
    flops = operator.cost(axes, dtype, scalars).flops
    if axes["total_q"] == axes["total_k"] and not options.small:
        # lengths that grow evenly have (4 n + 2) / (3 (n + 1)) times the pairs of equal ones
        count = axes["bounds"] - 1
        length = round(axes["total_q"] / count * math.sqrt((4 * count + 2) / (3 * (count + 1))))
        plain = registry.operator("attention")
        sizes = {name: axes[name] for name in ("kv_heads", "group", "head_dim", "value_dim")}
        sizes |= {"batch": count, "queries": length, "keys": length}
        shapes = [(count, heads, length, axes["head_dim"]) for heads in (axes["kv_heads"] * axes["group"],)]
        shapes += [(count, axes["kv_heads"], length, axes[dim]) for dim in ("head_dim", "value_dim")]
        given: list[torch.Tensor | None] = [
            torch.randn(shape, device=options.device).to(getattr(torch, dtype)) for shape in shapes
        ]
        given += [None] * (len(plain.inputs) - len(given))  # nothing is given beside them
        try:
            item = registry.implementation("attention", "triton_twoloops")
            same = {name: value for name, value in scalars.items() if name in plain.scalar_values({})}
            call = prepared(plain, item, given, sizes, dtype, plain.scalar_values(same))
            if not isinstance(call, str):
                found = interleaved({"unpadded": call}, [given, given], options.device, turns=options.turns).seconds
                own = plain.cost(sizes, dtype, plain.scalar_values(same)).flops
                seconds["unpadded"] = found["unpadded"] * flops / own
        except kernel_errors() as error:
            notes["unpadded"] = reason_of(error)
    return {"workload": workload.name, "dtype": dtype, "flops": flops, "seconds": seconds, "notes": notes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--configs", action="store_true", help="other tunables too")
    parser.add_argument("--small", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--limit", type=float, default=40.0, help="seconds after which no further row is begun")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    from opforge.registry import load

    began = time.perf_counter()
    registry = load([])
    operator = registry.operator("attention_varlen")
    rows = []
    for workload in operator.workloads:
        if workload.scale != "gpu":
            continue
        if time.perf_counter() - began > options.limit:
            print(f"{workload.name}: not begun, {options.limit:.0f} s are over")
            continue
        axes = dict(workload.axes)
        if options.small:
            axes |= {"bounds": 4, "total_q": 60, "total_k": 60 * axes["total_k"] // axes["total_q"]}
        found = row(registry, operator, workload, axes, options)
        rows.append(found)
        told = " · ".join(
            f"{name} {seconds * 1e6:.0f} us {found['flops'] / seconds / 1e12:.0f} TFLOP/s"
            for name, seconds in found["seconds"].items()
        )
        print(f"{workload.name} {options.dtype}: {told}", flush=True)
        for name, note in found["notes"].items():
            print(f"    {name}: {note}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
