"""One call of each attention kernel whose figure falls short, for Nsight Compute: what the READMEs say limits them.

ncu --profile-from-start off --section SpeedOfLight --section Occupancy --section WarpStateStats \\
    --section ComputeWorkloadAnalysis --csv --page raw --log-file ncu.csv python scripts/attention_profile.py
python scripts/attention_profile.py --only decode       kernels whose labels have that

Each is called twice before; its label is printed in the order of the profiles. A call has several kernels where it
prepares something: each has a profile of its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "scripts")]

FORWARD: tuple[tuple[str, tuple[int, int, int, int], Mapping[str, Any]], ...] = (
    ("cuda_wgmma", (16, 16, 1024, 64), {}),
    ("cuda_wgmma", (16, 16, 1024, 128), {}),
    ("cuda_wgmma", (1, 16, 16384, 128), {}),
    ("triton_twoloops", (4, 16, 4096, 128), {}),
    ("triton_twoloops", (4, 16, 4096, 64), {"dropout": 0.1, "seed": 3}),
)
"""(implementation, (batch, heads, length, dimensions), scalars)."""
BACKWARD: tuple[tuple[str, tuple[int, int, int, int], int, Mapping[str, Any]], ...] = (
    ("cuda_wgmma_ordered", (1, 16, 16384, 128), 128, {}),
    ("cuda_wgmma", (4, 16, 4096, 192), 128, {"causal": True}),
)
"""The same, with the dimensions of values."""
DECODE = ("llama3_b8_n8192_p16", "llama3_b1_n131072_p16")
VARLEN = ("llama3_packed_16",)
FP8 = ("b1_h16_n16384_d128", "b16_h16_n1024_d64")

Made = tuple[Callable[[Sequence[Any]], Any] | str, Sequence[Any]]


def axes_of(shape: tuple[int, int, int, int], value_dim: int) -> dict[str, int]:
    batch, heads, length, dim = shape
    sizes = {"batch": batch, "kv_heads": heads, "group": 1, "queries": length, "keys": length}
    return {**sizes, "head_dim": dim, "value_dim": value_dim}


def forward(registry: Any, name: str, shape: tuple[int, int, int, int], asked: Mapping[str, Any]) -> Made:
    from attention_times import config_of, inputs_of
    from direct import prepared

    from opforge.core.definition.implementation import Config

    operator, axes = registry.operator("attention"), axes_of(shape, shape[3])
    tensors = inputs_of(axes, "bfloat16", "cuda")
    # with dropout the default is as fast
    config = {} if "dropout" in asked else config_of(name, axes)
    chosen = Config(values=tuple(config.items())) if config else None
    item = registry.implementation("attention", name)
    return prepared(operator, item, tensors, axes, "bfloat16", operator.scalar_values(asked), chosen), tensors


def backward(
    registry: Any, name: str, shape: tuple[int, int, int, int], value_dim: int, asked: Mapping[str, Any]
) -> Made:
    import torch
    from attention_times import inputs_of
    from direct import prepared

    operator, axes = registry.operator("attention_backward"), axes_of(shape, value_dim)
    q, k, v = inputs_of(axes, "bfloat16", "cuda")[:3]
    out, lse = torch.randn_like(v), torch.full(shape[:3], 8.0, device="cuda")
    tensors = [q, k, v, out, lse, torch.randn_like(out), torch.zeros_like(lse), *[None] * 5]
    item = registry.implementation(operator.name, name)
    return prepared(operator, item, tensors, axes, "bfloat16", operator.scalar_values(asked)), tensors


def workload_of(registry: Any, operator: str, name: str) -> Any:
    return next(workload for workload in registry.operator(operator).workloads if workload.name == name)


def packed(registry: Any, operator_name: str, implementation: str, workload_name: str) -> Made:
    """Of attention_decode or attention_varlen."""
    import decode_times
    import torch
    import varlen_times
    from direct import prepared

    operator, workload = registry.operator(operator_name), workload_of(registry, operator_name, workload_name)
    make = decode_times.tensors_for if operator_name == "attention_decode" else varlen_times.tensors_for
    tensors = make(workload.axes, torch.bfloat16, "cuda")
    item, scalars = registry.implementation(operator_name, implementation), operator.scalar_values(workload.scalars)
    return prepared(operator, item, tensors, dict(workload.axes), "bfloat16", scalars), tensors


def fp8(registry: Any, workload_name: str) -> Made:
    import attention_fp8_times as times

    workload = workload_of(registry, "attention_fp8", workload_name)
    scalars = registry.operator("attention_fp8").scalar_values(workload.scalars)
    scalars = {**scalars, "q_block": 0, "k_block": 0, "has_key_lengths": False}
    tensors = times.inputs_of(workload.axes, "cuda")
    return times.ours(registry, "cuda_wgmma", "heads", workload.axes, scalars, tensors, {}), tensors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="kernels whose labels have this")
    options = parser.parse_args()

    import torch

    from opforge.registry import load

    registry = load([])
    wanted: dict[str, Callable[[], Made]] = {}
    for name, shape, asked in FORWARD:
        wanted[f"forward {name} {shape} {dict(asked)}"] = lambda a=(name, shape, asked): forward(registry, *a)
    for name, shape, dim, asked in BACKWARD:
        wanted[f"backward {name} {shape}/{dim} {dict(asked)}"] = lambda a=(name, shape, dim, asked): backward(
            registry, *a
        )
    for name in ("triton_splitkv", "cuda_splitkv"):
        for workload in DECODE:
            wanted[f"decode {name} {workload}"] = lambda a=(name, workload): packed(registry, "attention_decode", *a)
    for workload in VARLEN:
        wanted[f"varlen {workload}"] = lambda a=workload: packed(registry, "attention_varlen", "triton_varlen", a)
    for workload in FP8:
        wanted[f"fp8 {workload}"] = lambda a=workload: fp8(registry, a)
    for label, make in wanted.items():
        if options.only not in label:
            continue
        call, tensors = make()
        if isinstance(call, str):
            print(f"{label}: {call}", flush=True)
            continue
        for _ in range(2):
            call(tensors)
        torch.cuda.synchronize()
        print(label, flush=True)
        torch.cuda.cudart().cudaProfilerStart()
        call(tensors)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()
        del call, tensors
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
