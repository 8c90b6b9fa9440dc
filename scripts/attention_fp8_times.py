"""FP8 attention on a GPU beside bfloat16: scales of tensor, heads and blocks, and the error over the number of keys.

python scripts/attention_fp8_times.py                      both tables, a minute and a half
python scripts/attention_fp8_times.py --only error         the error alone

times   attention_fp8's cuda_wgmma with one scale for the tensor, one for each head, and one for each 128 rows of q and
        k; its triton_twoloops; attention's cuda_wgmma and PyTorch's cuDNN in bfloat16; all interleaved, as CUDA graphs,
        over copies that fit no cache together. The kernel that transposes v is in the time
error   cuda_wgmma against float64 over more and more keys, with sums of two levels (PROMOTE=1, what is used) and with
        sums that stay in the tensor core (PROMOTE=0): root mean square of the error over that of the result, for values
        of one sign and centred ones
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "scripts")]

BLOCK = 128
"""Rows of q and k that share a scale in the column "blocks"."""
FP8, WIDE = "float8_e4m3fn", "bfloat16"
TRITON = {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3}


def inputs_of(axes: Mapping[str, int], device: str) -> list[Any]:
    """FP8 q, k and v; scales of the tensor, of heads, of blocks of q and of k, of v; q, k and v in bfloat16."""
    import torch

    heads = axes["kv_heads"] * axes["group"]
    shapes = [(axes["batch"], heads, axes["queries"], axes["head_dim"])]
    shapes += [(axes["batch"], axes["kv_heads"], axes["keys"], axes[dim]) for dim in ("head_dim", "value_dim")]
    wide = [torch.randn(shape, device=device, dtype=torch.bfloat16) for shape in shapes]
    batch, kv_heads = axes["batch"], axes["kv_heads"]

    def scales(*shape: int) -> Any:
        return torch.rand(shape, device=device) * 0.5 + 0.75

    return [
        *(tensor.to(getattr(torch, FP8)) for tensor in wide),
        scales(1, 1, 1), scales(batch, heads, 1), scales(batch, kv_heads, 1),
        scales(batch, heads, -(-axes["queries"] // BLOCK)), scales(batch, kv_heads, -(-axes["keys"] // BLOCK)),
        *wide,
    ]  # fmt: skip


def given_of(kind: str, tensors: Sequence[Any]) -> list[Any]:
    """The inputs of attention_fp8 with scales of a kind, of those that inputs_of has made."""
    q, k, v, one, q_heads, k_heads, q_blocks, k_blocks = tensors[:8]
    if kind == "tensor":
        whole = [one.expand(*tensor.shape[:2], 1) for tensor in (q, k, v)]
        return [q, k, v, *whole, None]
    return [q, k, v, *((q_blocks, k_blocks) if kind == "blocks" else (q_heads, k_heads)), k_heads, None]


def ours(
    registry: Any, name: str, kind: str, axes: Any, scalars: Any, tensors: Sequence[Any], config: Mapping[str, int]
) -> Callable[[Sequence[Any]], Any] | str:
    """attention_fp8's implementation as a function of all tensors, or why it does not take them."""
    from direct import prepared

    from opforge.core.definition.implementation import Config

    operator, item = registry.operator("attention_fp8"), registry.implementation("attention_fp8", name)
    asked = {**scalars, "q_block": BLOCK, "k_block": BLOCK} if kind == "blocks" else dict(scalars)
    full = operator.completed({axis: axes[axis] for axis in operator.free_axes}, asked)
    values = {**dict(item.default.values), **config}
    call = prepared(operator, item, given_of(kind, tensors), full, FP8, asked, Config(values=tuple(values.items())))
    return call if isinstance(call, str) else lambda given: call(given_of(kind, given))


def cudnn(given: Sequence[Any], causal: bool) -> Any:
    """What a user of bfloat16 calls."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v = given[8:11]
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
        return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def calls_of(registry: Any, workload: Any, tensors: Sequence[Any], notes: dict[str, str]) -> dict[str, Any]:
    """Who computes a workload, by name."""
    from direct import kernel_errors, prepared, reason_of

    fp8, plain, axes = registry.operator("attention_fp8"), registry.operator("attention"), workload.axes
    scalars = {**fp8.scalar_values(workload.scalars), "q_block": 0, "k_block": 0, "has_key_lengths": False}
    made: dict[str, Callable[[], Any]] = {
        f"fp8 {kind}": functools.partial(ours, registry, "cuda_wgmma", kind, axes, scalars, tensors, {})
        for kind in ("tensor", "heads", "blocks")
    }
    made["fp8 triton"] = functools.partial(ours, registry, "triton_twoloops", "heads", axes, scalars, tensors, TRITON)
    known = {scalar.name for scalar in plain.scalars}
    own = plain.scalar_values({name: value for name, value in workload.scalars.items() if name in known})
    own |= {f"has_{spec.name}": False for spec in plain.inputs if spec.optional}
    bf16 = registry.implementation("attention", "cuda_wgmma")

    def wide() -> Any:
        call = prepared(plain, bf16, [*tensors[8:11], *[None] * 5], axes, WIDE, own)
        return call if isinstance(call, str) else lambda given: call([*given[8:11], *[None] * 5])

    made["bf16 cuda_wgmma"] = wide
    if scalars["window_left"] < 0:
        made["bf16 cuDNN"] = lambda: functools.partial(cudnn, causal=bool(scalars["causal"]))
    calls = {}
    for name, make in made.items():
        try:
            call = make()
            if isinstance(call, str):
                notes[name] = call
                continue
            call(tensors)
            calls[name] = call
        except kernel_errors() as error:
            notes[name] = reason_of(error)
    return calls


def times(registry: Any, options: Any) -> list[dict[str, Any]]:
    """Seconds of each workload by who computes it."""
    import torch
    from direct import copies_of, interleaved

    rows = []
    for workload in registry.operator("attention_fp8").workloads:
        if workload.scale != "gpu" or workload.name.endswith("_blocks"):
            continue
        notes: dict[str, str] = {}
        tensors = inputs_of(workload.axes, "cuda")
        calls = calls_of(registry, workload, tensors, notes)
        found = interleaved(calls, copies_of(tensors), "cuda", turns=options.turns)
        flops = registry.operator("attention_fp8").cost(workload.axes, FP8, workload.scalars).flops
        rows.append({"workload": workload.name, "flops": flops, "seconds": found.seconds, "notes": notes})
        torch.cuda.empty_cache()
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """TFLOP/s, and FP8 over our bfloat16 and over its own scale of the tensor."""
    names = list(dict.fromkeys(name for row in rows for name in row["seconds"]))
    lines = [f"| TFLOP/s | {' | '.join(names)} | fp8 / bf16 | blocks / tensor |", "|---" * (len(names) + 3) + "|"]
    for row in rows:
        seconds = row["seconds"]

        def over(one: str, other: str, seconds: dict[str, float] = seconds) -> str:
            return f"{seconds[other] / seconds[one]:.2f}" if one in seconds and other in seconds else ""

        cells = [f"{row['flops'] / seconds[name] / 1e12:.0f}" if name in seconds else "" for name in names]
        ratios = over("fp8 heads", "bf16 cuda_wgmma"), over("fp8 blocks", "fp8 tensor")
        lines.append(f"| {row['workload']} | {' | '.join((*cells, *ratios))} |")
    return "\n".join([*lines, *(f"- {row['workload']}, {n}: {why}" for row in rows for n, why in row["notes"].items())])


def errors(registry: Any) -> list[dict[str, Any]]:
    """Root mean square errors over those of the result, 128 queries of two heads of 128."""
    import torch

    operator, rows = registry.operator("attention_fp8"), []
    scalars = {**operator.scalar_values({}), "has_key_lengths": False}
    for keys in (1024, 4096, 16384, 65536, 131072):
        axes = {"batch": 1, "kv_heads": 2, "group": 1, "queries": 128, "keys": keys, "head_dim": 128, "value_dim": 128}
        tensors = inputs_of(axes, "cuda")
        for values in ("one sign", "centred"):
            if values == "one sign":
                tensors[2] = tensors[2].float().abs().to(tensors[2].dtype)
            else:
                tensors[2] = (torch.randn(tensors[2].shape, device="cuda")).to(tensors[2].dtype)
            q, k, v, *scales = given_of("heads", tensors)[:6]
            wide = [t.double() * s.double()[..., None, :] for t, s in zip((q, k, v), scales, strict=True)]
            weights = (wide[0] @ wide[1].transpose(-1, -2) * 128**-0.5).softmax(dim=-1)
            wanted = weights @ wide[2]
            row: dict[str, Any] = {"keys": keys, "values": values}
            for promote in (1, 0):
                call = ours(registry, "cuda_wgmma", "heads", axes, scalars, tensors, {"PROMOTE": promote})
                assert not isinstance(call, str), call
                out = call(tensors)[0].double()
                row[f"PROMOTE={promote}"] = float(((out - wanted).square().mean() / wanted.square().mean()).sqrt())
            rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", choices=("times", "error"))
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--json", type=Path, help="where the numbers go")
    options = parser.parse_args()

    import torch

    from opforge.registry import load

    registry = load([])
    kept: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(f"{kept['device']}, PyTorch {kept['torch']}")
    if options.only != "times":
        kept["errors"] = errors(registry)
        print("\n| keys | values | two levels | tensor core alone |\n|---|---|---|---|")
        for row in kept["errors"]:
            print(f"| {row['keys']} | {row['values']} | {row['PROMOTE=1']:.2%} | {row['PROMOTE=0']:.2%} |", flush=True)
    if options.only != "error":
        kept["times"] = times(registry, options)
        print(f"\n{table(kept['times'])}")
    if options.json:
        options.json.write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
