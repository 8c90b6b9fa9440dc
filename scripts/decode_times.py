"""Decoding against a paged cache on a GPU: TB/s of keys and values, kernels beside PyTorch's, how far they agree.

python scripts/decode_times.py                  a table; --json FILE keeps the numbers
python scripts/decode_times.py --only llama3    workloads whose names have that; --configs: other tunables too
python scripts/decode_times.py --device cpu --small     does it run? Tiny sizes, and what works on a CPU

Calls of a row are interleaved in one process, as CUDA graphs where that works, over copies that fit no cache together.
`contiguous` is PyTorch's scaled_dot_product_attention on keys that lie as it wants them, [batch, kv_heads, keys, dim],
heads of a group as rows: no page is looked up, and no copy is made. TB/s count the operator's own bytes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

CONFIGS: Mapping[str, tuple[Mapping[str, int], ...]] = {
    "cuda_splitkv": (
        {"STAGES": 2, "SPLITS": 0},
        {"STAGES": 4, "SPLITS": 0},
        {"STAGES": 0, "SPLITS": 8},
        {"STAGES": 0, "SPLITS": 32},
    ),
    "triton_splitkv": (
        {"BLOCK_N": 64, "WAVES": 2, "num_warps": 4, "num_stages": 5},
        {"BLOCK_N": 64, "WAVES": 8, "num_warps": 4, "num_stages": 4},
        {"BLOCK_N": 128, "WAVES": 4, "num_warps": 4, "num_stages": 3},
        {"BLOCK_N": 32, "WAVES": 4, "num_warps": 2, "num_stages": 5},
    ),
}
GATHERED = 1 << 30
"""Bytes of keys and values up to which PyTorch's gather into a copy is timed too."""


def tensors_for(axes: Mapping[str, int], dtype: Any, device: str) -> list[Any]:
    """Inputs of a call whose sequences fill their pages, in any order."""
    import torch

    q = torch.randn(axes["batch"], axes["kv_heads"] * axes["group"], axes["queries"], axes["head_dim"], device=device)
    pages = [
        torch.randn(axes["pages"], axes["page"], axes["kv_heads"], axes[dim], device=device, dtype=dtype)
        for dim in ("head_dim", "value_dim")
    ]
    table = torch.randperm(axes["pages"], device=device)[: axes["batch"] * axes["max_pages"]]
    table = table.reshape(axes["batch"], axes["max_pages"]).int()
    lengths = torch.full((axes["batch"],), axes["max_pages"] * axes["page"], dtype=torch.int32, device=device)
    return [q.to(dtype), *pages, table, lengths]


def difference(found: Sequence[Any], tensors: Sequence[Any], scalars: Mapping[str, Any]) -> tuple[float, float]:
    """The largest differences of out and of its log-sum-exp from the definition, of the first and last sequence."""
    from opforge.ops.attention.attention_decode.torch_definition import run

    worst = [0.0, 0.0]
    q, k, v, table, lengths = tensors
    for number in {0, q.shape[0] - 1}:
        part = slice(number, number + 1)
        wanted = run(q[part], k, v, table[part], lengths[part], **scalars)
        for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
            worst[place] = max(worst[place], float((one[part].float() - other.float()).abs().max()))
    return worst[0], worst[1]


def row(
    operator: Any, kernels: Mapping[str, Any], workload: Any, axes: Any, dtype: str, options: Any
) -> dict[str, Any]:
    """Times and differences of one workload."""
    import torch
    from direct import copies_of, interleaved, kernel_errors, prepared, reason_of
    from torch.nn.functional import scaled_dot_product_attention

    scalars = operator.scalar_values(workload.scalars)
    tensors = tensors_for(axes, getattr(torch, dtype), options.device)
    cost = operator.cost(axes, dtype, scalars)
    calls: dict[str, Any] = {}
    notes: dict[str, str] = {}
    wanted = [(name, name, None) for name in kernels]
    if options.configs:
        for name, configs in CONFIGS.items():
            wanted += [(f"{name} {' '.join(map(str, config.values()))}", name, config) for config in configs]
    for label, name, config in wanted:
        if name == "torch_eager" and cost.bytes > GATHERED:
            continue
        item = kernels[name]
        chosen = type(item.default)(values=tuple(config.items())) if config is not None else None
        try:
            call = prepared(operator, item, tensors, axes, dtype, scalars, chosen)
            if isinstance(call, str):
                notes[label] = call
                continue
            found = call(tensors)
            if config is None:
                out, lse = difference(found, tensors, scalars)
                notes[label] = f"off by {out:.2g}, lse {lse:.2g}"
            calls[label] = call
        except kernel_errors() as error:
            notes[label] = reason_of(error)
    if axes["queries"] == 1 and scalars["window_left"] < 0 and axes["head_dim"] == axes["value_dim"]:
        kept = {}
        copies = copies_of(tensors)
        for copy in copies:
            kept[id(copy[1])] = tuple(
                pages[copy[3].long()].flatten(1, 2).transpose(1, 2).contiguous() for pages in copy[1:3]
            )

        def contiguous(given: Sequence[Any]) -> Any:
            rows = given[0].view(axes["batch"], axes["kv_heads"], axes["group"], axes["head_dim"])
            return scaled_dot_product_attention(rows, *kept[id(given[1])])

        calls["contiguous"] = contiguous
    else:
        copies = copies_of(tensors)
    times = interleaved(calls, copies, options.device, turns=options.turns)
    return {
        "workload": workload.name,
        "dtype": dtype,
        "bytes": cost.bytes,
        "seconds": times.seconds,
        "notes": {**notes, **times.called},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", action="append", choices=("bfloat16", "float16"))
    parser.add_argument("--only", default="", help="workloads whose names have this")
    parser.add_argument("--configs", action="store_true", help="other tunables of both kernels too")
    parser.add_argument("--small", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--limit", type=float, default=100.0, help="seconds after which no further row is begun")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    import torch

    from opforge.registry import load

    began = time.perf_counter()
    registry = load([])
    operator = registry.operator("attention_decode")
    wanted = ("cuda_splitkv", "triton_splitkv", "torch_eager")
    kernels = {name: registry.implementation(operator.name, name) for name in wanted}
    rows = []
    for dtype in options.dtype or ("bfloat16",):
        for workload in operator.workloads:
            if workload.scale != "gpu" or options.only not in workload.name:
                continue
            if time.perf_counter() - began > options.limit:
                print(f"{workload.name} {dtype}: not begun, {options.limit:.0f} s are over")
                continue
            axes = dict(workload.axes)
            if options.small:
                axes = {**axes, "batch": 2, "max_pages": 3, "page": min(axes["page"], 16), "pages": 6}
            found = row(operator, kernels, workload, axes, dtype, options)
            rows.append(found)
            told = " · ".join(
                f"{name} {seconds * 1e6:.1f} us {found['bytes'] / seconds / 1e12:.2f} TB/s"
                for name, seconds in found["seconds"].items()
            )
            print(f"{workload.name} {dtype} {found['bytes'] / 1e6:.0f} MB: {told}", flush=True)
            for name, note in found["notes"].items():
                print(f"    {name}: {note}", flush=True)
            if options.device != "cpu":
                torch.cuda.empty_cache()
    if options.json:
        device = torch.cuda.get_device_name() if options.device != "cpu" else "cpu"
        options.json.write_text(json.dumps({"device": device, "torch": torch.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
