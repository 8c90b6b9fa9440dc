"""Attention with dropout beside FlashAttention-2's, and windows beside the dense rate: TFLOP/s of what is seen.

python scripts/attention_features_times.py                       two tables, half a minute on a GPU
python scripts/attention_features_times.py --device cpu --small  does it run? Tiny sizes, and what works on a CPU

Dropout of 0.1, triton_twoloops in its default config and three others, called in turn with PyTorch's
scaled_dot_product_attention (its FlashAttention-2 on a GPU). Windows: 16 heads of 16384 tokens, cuda_wgmma and
triton_twoloops, as CUDA graphs, all interleaved.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "scripts")]

SHAPES = ((16, 16, 1024), (4, 16, 4096), (1, 16, 16384))
"""(batch, heads, length) of the calls with dropout."""
NAMES = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages", "MAXREG")
CONFIGS = ((128, 64, 8, 3, 0), (64, 64, 4, 3, 0), (128, 32, 4, 2, 0))
DROPOUT = {"dropout": 0.1, "seed": 7}
WINDOWS: tuple[Mapping[str, Any], ...] = (
    {},
    {"causal": True},
    {"causal": True, "window_left": 4095},
    {"causal": True, "window_left": 1023},
    {"window_left": 2048, "window_right": 2048},
)

Call = Callable[[Sequence[Any]], Any]


def call_of(registry: Any, name: str, axes: Any, tensors: Any, scalars: Any, config: Mapping[str, int]) -> Call | None:
    """An implementation of attention as a function of its inputs, run once; None, with a line, where it fails."""
    from direct import kernel_errors, prepared, reason_of

    from opforge.core.definition.implementation import Config

    item = registry.implementation("attention", name)
    chosen = Config(values=tuple(config.items())) if config else None
    try:
        call = prepared(registry.operator("attention"), item, tensors, axes, "bfloat16", scalars, chosen)
        if not isinstance(call, str):
            call(tensors)
            return call
        reason = call
    except kernel_errors() as error:
        reason = reason_of(error)
    print(f"    {name} {dict(config)}: {reason}", flush=True)
    return None


def axes_of(batch: int, heads: int, length: int, dim: int) -> dict[str, int]:
    sizes = {"batch": batch, "kv_heads": heads, "group": 1, "queries": length, "keys": length}
    return {**sizes, "head_dim": dim, "value_dim": dim}


def fa2(causal: bool, device: str) -> Call:
    """What a user of PyTorch calls."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def call(given: Sequence[Any]) -> Any:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION if device == "cuda" else SDPBackend.MATH]):
            return scaled_dot_product_attention(*given[:3], dropout_p=0.1, is_causal=causal)

    return call


def dropouts(registry: Any, options: Any) -> None:
    """One line a shape, and the geometric mean of the best of ours over PyTorch's."""
    from attention_times import inputs_of
    from direct import interleaved

    operator, ratios = registry.operator("attention"), []
    for batch, heads, length in ((1, 2, 96),) if options.small else SHAPES:
        for dim in (64, 128):
            for causal in (False, True):
                axes = axes_of(batch, heads, length, dim)
                tensors = inputs_of(axes, "bfloat16", options.device)
                scalars = operator.scalar_values({**DROPOUT, "causal": causal})
                work = operator.cost(axes, "bfloat16", scalars).flops / 1e12
                name, configs = "triton_twoloops", [dict(zip(NAMES, config, strict=True)) for config in CONFIGS]
                if options.device == "cpu":
                    name, configs = "cpp_blocked", []
                made = {
                    "/".join(map(str, config.values())) or "default": call_of(
                        registry, name, axes, tensors, scalars, config
                    )
                    for config in ({}, *configs)
                }
                ours = {label: call for label, call in made.items() if call is not None}
                calls = {**ours, "PyTorch": fa2(causal, options.device)}
                times = interleaved(calls, [tensors], options.device, graphs=False, turns=3).seconds
                told = " · ".join(f"{label} {work / seconds:.3g}" for label, seconds in times.items())
                if ours:
                    ratios.append(times["PyTorch"] / min(times[label] for label in ours))
                    told += f" · ours / PyTorch {ratios[-1]:.2f}"
                mask = "causal" if causal else "full"
                print(f"dropout, {batch} x {heads} x {length}, {dim}, {mask}: {told}", flush=True)
    if ratios:
        print(f"dropout: geometric mean {statistics.geometric_mean(ratios):.2f}, least {min(ratios):.2f}", flush=True)


def windows(registry: Any, options: Any) -> None:
    """One line a dimension and implementation, the rate of a window over that without one."""
    from attention_times import config_of, inputs_of
    from direct import copies_of, interleaved

    operator, length = registry.operator("attention"), 96 if options.small else 16384
    for dim in (64, 128):
        axes = axes_of(1, 16, length, dim)
        tensors = inputs_of(axes, "bfloat16", options.device)
        for name in ("cuda_wgmma", "triton_twoloops") if options.device == "cuda" else ("cpp_blocked",):
            calls, work = {}, {}
            for asked in WINDOWS:
                scalars = operator.scalar_values(asked)
                call = call_of(registry, name, axes, tensors, scalars, config_of(name, axes))
                if call is not None:
                    label = ", ".join(f"{key} {value}" for key, value in asked.items()) or "full"
                    calls[label], work[label] = call, operator.cost(axes, "bfloat16", scalars).flops / 1e12
            times = interleaved(calls, copies_of(tensors), options.device, turns=5).seconds
            rates = {label: work[label] / seconds for label, seconds in times.items()}
            told = []
            for label, rate in rates.items():
                dense = rates.get("causal True" if "causal" in label else "full", math.nan)
                told.append(f"{label} {rate:.3g} ({rate / dense:.2f})")
            print(f"windows, {name}, {dim}: {' · '.join(told)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--only", choices=("dropout", "windows"))
    options = parser.parse_args()

    from opforge.registry import load

    registry = load([])
    if options.only != "windows":
        dropouts(registry, options)
    if options.only != "dropout":
        windows(registry, options)


if __name__ == "__main__":
    main()
