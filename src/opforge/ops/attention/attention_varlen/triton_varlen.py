"""Blocks of queries of packed sequences: each program finds its sequence by the offsets; masks bound the loops.

source    Dao, FlashAttention-2, arXiv:2307.08691
idea      the r-th sequence with queries has room for its blocks from number offset // BLOCK_M + r on, whatever the
          lengths: the grid follows from the sizes of the tensors alone, and a program finds its sequence by a scan of
          the offsets. No length goes to the host
moves     q and out once; k and v once for each block of queries of their sequence, mostly from L2
code      opforge/device/triton/attention_varlen.py
"""

from opforge.device.triton.attention import SUPPORTS as SUPPORTS
from opforge.device.triton.attention_varlen import (
    DEFAULT as DEFAULT,
    LIMITS as LIMITS,
    SPACE as SPACE,
    launch_varlen,
)

LAYOUTS = ("contiguous", "rows", "strided")


def launch(
    q, k, v, cu_seqlens_q, cu_seqlens_k, out, lse, *, scale, causal, window_left, window_right, alignment, softcap,
    BLOCK_M, BLOCK_N, num_warps, num_stages,
):  # fmt: skip
    launch_varlen(
        q, k, v, cu_seqlens_q, cu_seqlens_k, out, lse, scale=scale, causal=causal, window_left=window_left,
        window_right=window_right, alignment=alignment, softcap=softcap, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
