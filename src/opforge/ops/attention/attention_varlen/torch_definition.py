"""The definition in tensor operations: one sequence after another, scores in float32.

limits    offsets are read on the host: a GPU is waited for
"""

import math

import torch
from torch import Tensor

from opforge.device.torch.attention import Beside, seen_by
from opforge.device.torch.attention_decode import by_quotient
from opforge.device.torch.attention_varlen import ends_of

NOT_COMPILED = "offsets are read on the host: a loop over sequences of sizes that only they tell"


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
    out = q.new_zeros((*q.shape[:2], v.shape[-1]))
    lse = q.new_full((q.shape[1], q.shape[0]), -math.inf, dtype=torch.float32)
    q_ends = ends_of("cu_seqlens_q", cu_seqlens_q, q.shape[0])
    k_ends = ends_of("cu_seqlens_k", cu_seqlens_k, k.shape[0])
    for place in range(len(q_ends) - 1):
        rows, columns = slice(q_ends[place], q_ends[place + 1]), slice(k_ends[place], k_ends[place + 1])
        if rows.stop == rows.start or columns.stop == columns.start or not q.shape[1]:
            continue
        packed = [tensor.transpose(0, 1)[None] for tensor in (q[rows], k[columns], v[columns])]
        seen = seen_by(packed[0], packed[1], Beside(), causal, window_left, window_right, alignment)
        k_all, v_all = (kept.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for kept in packed[1:])
        found = by_quotient(packed[0], k_all, v_all, seen, factor, softcap)
        out[rows], lse[:, rows] = found[0][0].transpose(0, 1), found[1][0]
    return out, lse
