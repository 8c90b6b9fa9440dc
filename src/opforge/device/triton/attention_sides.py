"""What attention's Triton kernels are given beside queries, keys and values: arguments of a launch, what joins a block
of scores, and which weights are dropped. A flag of each is known when a kernel is compiled: what is not given costs
nothing.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def joined(
    s, rows, cols, shift, queries, keys, bias_at, bias_n, bias_k, mask_at, mask_n, mask_k, slope, BIAS: tl.constexpr,
    MASK: tl.constexpr, ALIBI: tl.constexpr,
):  # fmt: skip
    """Scores [M, N] in units of log(2), with a head's bias and ALiBi, and -inf where its mask is False."""
    if ALIBI:
        distance = tl.abs(cols[None, :] - rows[:, None] - shift)
        s = s - distance.to(tl.float32) * slope * LOG2E
    if BIAS or MASK:
        inside = (rows < queries)[:, None] & (cols < keys)[None, :]
        # int64: a place in a matrix of scores leaves int32 beyond 2^31 elements
        line, column = rows[:, None].to(tl.int64), cols[None, :].to(tl.int64)
        if BIAS:
            s = s + tl.load(bias_at + line * bias_n + column * bias_k, mask=inside, other=0.0).to(tl.float32) * LOG2E
        if MASK:
            seen = tl.load(mask_at + line * mask_n + column * mask_k, mask=inside, other=0)
            s = tl.where(seen != 0, s, -float("inf"))
    return s


@triton.jit
def kept(rows, start, b, h, seed, least, offset, BLOCK_N: tl.constexpr):
    """[M, BLOCK_N]: whether weights of keys from `start` on, a multiple of four, are kept, as
    opforge.core.attention_dropout has it.
    """
    blocks = (start // 4 + tl.arange(0, BLOCK_N // 4)).to(tl.uint32)[None, :]
    lines = rows.to(tl.uint32)[:, None]
    c0, c1 = tl.broadcast(blocks, lines)
    zero = c0 * 0
    c2 = zero + (b * 65536 + h).to(tl.uint32)
    c3 = zero + offset.to(tl.int64).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(seed, c0, c1, c2, c3)
    # [M, BLOCK_N / 4, 2, 2], the last axis fastest: w0, w1, w2, w3
    words = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), [c0.shape[0], BLOCK_N])
    return words >= least.to(tl.int64).to(tl.uint32)


@triton.jit
def keys_of(lengths_ptr, lengths_b, b, keys, LENGTHS: tl.constexpr):
    """How many keys an entry of the batch has."""
    if LENGTHS:
        return tl.minimum(tl.maximum(tl.load(lengths_ptr + b * lengths_b), 0), keys)
    return keys


def arguments_of(
    q: torch.Tensor,
    key_lengths: torch.Tensor | None,
    bias: torch.Tensor | None,
    mask: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
    dropout: float,
    seed: int,
    offset: int,
) -> tuple[list[Any], dict[str, bool]]:
    """The arguments of a kernel, in the order in which all of them take these, and its flags."""
    if mask is not None:
        mask = mask.view(torch.uint8)
    given: list[Any] = []
    for tensor, axes in ((key_lengths, 1), (bias, 4), (mask, 4), (alibi_slopes, 1), (sinks, 1)):
        given += [tensor, *((0,) * axes if tensor is None else tensor.stride())]
    flags = {
        "LENGTHS": key_lengths is not None,
        "BIAS": bias is not None,
        "MASK": mask is not None,
        "ALIBI": alibi_slopes is not None,
        "SINKS": sinks is not None,
        "DROPOUT": dropout > 0,
    }
    return [*given, seed, int(dropout * 4294967296.0), offset, 1 / (1 - dropout)], flags
