"""What PyTorch has for packed sequences: its FlashAttention-2 with cumulative lengths on a GPU, else
scaled_dot_product_attention, one sequence after another.

limits    lengths are read on the host; matrix products where PyTorch has no kernel: windows, softcap, odd sizes
"""

import math

import torch
from torch import Tensor

from opforge.device.torch.attention import Beside, attend_with_lse, seen_by
from opforge.device.torch.attention_decode import by_quotient
from opforge.device.torch.attention_varlen import ends_of

NOT_COMPILED = "offsets are read on the host: a loop over sequences of sizes that only they tell"
INACCURATE = "on a CPU (PyTorch 2.13) the log-sum-exp of 16-bit tensors is off by 3e-6: exponentials of 20 bits"


def run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    scale: float,
    causal: bool,
    window_left: int,
    window_right: int,
    alignment: str,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    factor = scale or 1.0 / math.sqrt(q.shape[-1])
    q_ends = ends_of("cu_seqlens_q", cu_seqlens_q, q.shape[0])
    k_ends = ends_of("cu_seqlens_k", cu_seqlens_k, k.shape[0])
    lengths = [(b - a, d - c) for a, b, c, d in zip(q_ends[:-1], q_ends[1:], k_ends[:-1], k_ends[1:], strict=True)]
    plain = softcap <= 0 and window_left < 0 and window_right < 0
    # its causal mask stands at the last key
    placed = not causal or alignment == "bottom_right" or all(queries == keys for queries, keys in lengths)
    whole = q.shape[-1] == v.shape[-1] and q.shape[-1] % 8 == 0 and q.numel() and k.numel()
    if q.is_cuda and q.dtype != torch.float32 and plain and placed and whole and factor > 0:
        longest = [max(pair[side] for pair in lengths) for side in (0, 1)]
        found = torch.ops.aten._flash_attention_forward(
            q, k, v, cu_seqlens_q, cu_seqlens_k, *longest, 0.0, causal, False, scale=factor
        )
        out, lse = found[0], found[1].masked_fill(found[1] == math.inf, -math.inf)
        # rows behind the last offset are of no sequence, and it leaves them as they were
        out[q_ends[-1] :], lse[:, q_ends[-1] :] = 0, -math.inf
        return out, lse
    out = q.new_zeros((*q.shape[:2], v.shape[-1]))
    lse = q.new_full((q.shape[1], q.shape[0]), -math.inf, dtype=torch.float32)
    for place, (queries, keys) in enumerate(lengths):
        if not queries or not keys or not q.shape[1]:
            continue
        rows, columns = slice(q_ends[place], q_ends[place + 1]), slice(k_ends[place], k_ends[place + 1])
        packed = [tensor.transpose(0, 1)[None] for tensor in (q[rows], k[columns], v[columns])]
        found = None
        if softcap <= 0:
            found = attend_with_lse(*packed, Beside(), factor, causal, window_left, window_right, alignment)
        if found is None:
            seen = seen_by(packed[0], packed[1], Beside(), causal, window_left, window_right, alignment)
            k_all, v_all = (kept.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for kept in packed[1:])
            found = by_quotient(packed[0], k_all, v_all, seen, factor, softcap)
        out[rows], lse[:, rows] = found[0][0].transpose(0, 1), found[1][0]
    return out, lse
