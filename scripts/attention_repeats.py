"""How often attention's gradients come out with other bits: the same call again and again, on shapes that fill a GPU.

    python scripts/attention_repeats.py --runs 1000
    python scripts/attention_repeats.py --implementation cuda_wgmma --runs 100       # of the one that promises nothing
    python scripts/attention_repeats.py --device cpu --implementation torch_definition --small --runs 3

Every run writes into outputs that were filled with NaN; what is compared is bits, on the device. Ends with exit code 1
if an implementation that says it repeats does not.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

SHAPES: tuple[tuple[str, dict[str, int], dict[str, Any]], ...] = (
    ("full, 128", {"batch": 2, "kv_heads": 8, "group": 1, "queries": 2048, "keys": 2048, "head_dim": 128}, {}),
    (
        "causal, 128, groups",
        {"batch": 1, "kv_heads": 4, "group": 4, "queries": 2048, "keys": 2048, "head_dim": 128},
        {"causal": True},
    ),
    (
        "window, 64, odd",
        {"batch": 2, "kv_heads": 8, "group": 1, "queries": 1999, "keys": 2049, "head_dim": 64},
        {"causal": True, "window_left": 511},
    ),
    (
        "softcap, 64",
        {"batch": 2, "kv_heads": 8, "group": 1, "queries": 2048, "keys": 2048, "head_dim": 64},
        {"softcap": 30.0},
    ),
)


def differing(registry: Any, name: str, axes: dict[str, int], given: dict[str, Any], options: Any) -> int:
    """Of `options.runs` runs, how many have other bits than the first in any gradient."""
    import torch
    from direct import prepared

    operator = registry.operator("attention_backward")
    scalars = operator.scalar_values(given)
    torch.manual_seed(1)
    kind = getattr(torch, options.dtype)
    heads = axes["kv_heads"] * axes["group"]
    of_queries = (axes["batch"], heads, axes["queries"], axes["head_dim"])
    of_keys = (axes["batch"], axes["kv_heads"], axes["keys"], axes["head_dim"])
    q, out, dout = (torch.randn(of_queries, device=options.device).to(kind) for _ in range(3))
    k, v = (torch.randn(of_keys, device=options.device).to(kind) for _ in range(2))
    # weights sum to about 1: what a row's log-sum-exp is for such scores, whatever it sees
    lse = torch.full(of_queries[:3], float(axes["keys"]), device=options.device).log() + 0.5
    tensors = [q, k, v, out, lse, dout, torch.randn(of_queries[:3], device=options.device), *[None] * 5]
    item = registry.implementation("attention_backward", name)
    call = prepared(operator, item, tensors, axes, options.dtype, scalars)
    if isinstance(call, str):
        raise SystemExit(f"{name} does not take this: {call}")
    kept = [result.clone() for result in call(tensors)]
    other = torch.zeros((), dtype=torch.int64, device=options.device)
    for _ in range(options.runs):
        results = call(tensors)
        same = torch.ones((), dtype=torch.bool, device=options.device)
        for result, first in zip(results, kept, strict=True):
            same = same & (result.view(torch.int16) == first.view(torch.int16)).all()
            result.fill_(float("nan"))
        other += ~same
    return int(other.item())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--implementation", default="cuda_wgmma_ordered")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--small", action="store_true", help="tiny sizes: does it run?")
    options = parser.parse_args()

    from opforge.registry import load

    registry = load([])
    worst = 0
    for title, sizes, given in SHAPES:
        axes = {**sizes, "value_dim": sizes["head_dim"]}
        if options.small:
            axes |= {"queries": 65, "keys": 70}
        count = differing(registry, options.implementation, axes, given, options)
        worst = max(worst, count)
        told = f"{count} of {options.runs} runs have other bits than the first"
        print(f"{options.implementation}, {title}: {told}", flush=True)
    promised = registry.implementation("attention_backward", options.implementation).deterministic
    return 1 if worst and promised else 0


if __name__ == "__main__":
    sys.exit(main())
