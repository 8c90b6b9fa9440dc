"""PyTorch's FlexAttention through torch.compile: what is seen is a Python function of it.

limits    what its users write once and keep is made before the first call of a kind and kept: the blocks that a mask
          leaves, and the compiled kernel. Sides are left out here, and softcaps: Inductor of PyTorch 2.11 had no kernel
          for one of 67 queries
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

NEEDS = "torch==2.13.0"
SUPPORTS = {
    "nothing_beside": "not (has_key_lengths or has_bias or has_mask or has_alibi_slopes or has_sinks)",
    "no_dropout": "dropout == 0",
    "no_softcap": "softcap == 0",
}

KEPT: dict[tuple[Any, ...], Callable[..., Any]] = {}
"""The kernel of the last kind of call."""


def kernel_for(
    queries: int, keys: int, device: torch.device, causal: bool, left: int, right: int, alignment: str
) -> Callable[..., Any]:
    """FlexAttention for these lengths, this mask, to be compiled at its first call."""
    shift = keys - queries if alignment == "bottom_right" else 0

    def seen(_: Tensor, __: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = key - query - shift
        found = distance == distance
        if left >= 0:
            found = found & (distance >= -left)
        if right >= 0:
            found = found & (distance <= right)
        return found & (distance <= 0) if causal else found

    masked = causal or left >= 0 or right >= 0
    blocks = create_block_mask(seen, None, None, queries, keys, device=device.type) if masked else None
    # past its limit of recompilations torch.compile would run every product through memory: fullgraph raises instead
    compiled = torch.compile(flex_attention, fullgraph=True, dynamic=False)

    def call(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Any:
        return compiled(
            q,
            k,
            v,
            block_mask=blocks,
            scale=scale or None,
            enable_gqa=q.shape[1] != k.shape[1],
            return_aux=AuxRequest(lse=True),
        )

    return call


def run(
    q: Tensor, k: Tensor, v: Tensor, key_lengths: Tensor | None, bias: Tensor | None, mask: Tensor | None,
    alibi_slopes: Tensor | None, sinks: Tensor | None, scale: float, causal: bool, window_left: int, window_right: int,
    alignment: str, softcap: float, dropout: float, seed: int, offset: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    kind = (causal, window_left, window_right, alignment)
    key = (q.shape, k.shape, v.shape, q.dtype, q.device, scale, kind)
    if key not in KEPT:
        KEPT.clear()
        torch.compiler.reset()
        KEPT[key] = kernel_for(q.shape[2], k.shape[2], q.device, *kind)
    out, beside = KEPT[key](q, k, v, scale)
    return out, beside.lse
