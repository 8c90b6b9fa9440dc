"""Rotary positions in Triton: a token and a block of its heads per program, for rotary and for its gradient."""

from typing import Any

import triton
import triton.language as tl

LAYOUTS = ("contiguous", "rows", "strided")
SUPPORTS = {"a_head_fits": "dim <= 2048"}
SPACE = {"HEADS": (1, 2, 4, 8, 16, 32), "num_warps": (1, 2, 4, 8)}
LIMITS = {"fits_registers": "HEADS * max(2 * next_pow2(half), next_pow2(dim - 2 * half)) <= 32 * 64 * num_warps"}
DEFAULT = {"HEADS": 4, "num_warps": 4}


@triton.jit
def turn_heads(
    x_at, y_at, x_h, x_d, heads, dim, half, block, c, s, HEADS: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """A block of the heads of one token at `x_at`, in strides, into `y_at`, contiguous; c and s [1, HALF]."""
    h = (block * HEADS + tl.arange(0, HEADS))[:, None].to(tl.int64)  # [HEADS, 1]
    there = h < heads
    if INTERLEAVED:
        e = tl.arange(0, 2 * HALF)[None, :]
        inside = there & (e < 2 * half)
        x = tl.load(x_at + h * x_h + e * x_d, mask=inside, other=0.0).to(tl.float32)  # [HEADS, 2 * HALF]
        a, b = tl.split(tl.reshape(x, (HEADS, HALF, 2)))
        y = tl.reshape(tl.join(a * c - b * s, b * c + a * s), (HEADS, 2 * HALF))
        tl.store(y_at + h * dim + e, y.to(y_at.dtype.element_ty), mask=inside)
    else:
        e = tl.arange(0, HALF)[None, :]
        inside = there & (e < half)
        a = tl.load(x_at + h * x_h + e * x_d, mask=inside, other=0.0).to(tl.float32)  # [HEADS, HALF]
        b = tl.load(x_at + h * x_h + (half + e) * x_d, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_at + h * dim + e, (a * c - b * s).to(y_at.dtype.element_ty), mask=inside)
        tl.store(y_at + h * dim + half + e, (b * c + a * s).to(y_at.dtype.element_ty), mask=inside)
    if REST > 0:
        e = 2 * half + tl.arange(0, REST)[None, :]
        inside = there & (e < dim)
        tl.store(y_at + h * dim + e, tl.load(x_at + h * x_h + e * x_d, mask=inside), mask=inside)


@triton.jit
def rotate_tokens(
    q_ptr, k_ptr, cos_ptr, sin_ptr, positions_ptr, q_out_ptr, k_out_ptr, q_b, q_t, q_h, q_d, k_b, k_t, k_h, k_d,
    cos_p, cos_i, sin_p, sin_i, positions_b, positions_t, tokens, heads, kv_heads, dim, half, places, sign,
    POSITIONS: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    # int64: the offset leaves int32 beyond 2^31 elements
    row = tl.program_id(0).to(tl.int64)
    batch, token = row // tokens, row % tokens
    place = token
    if POSITIONS:
        place = tl.load(positions_ptr + batch * positions_b + token * positions_t)
    i = tl.arange(0, HALF)[None, :]
    # where there is no such place nothing is read, and what is turned is NaN
    known = (i < half) & (place >= 0) & (place < places)
    c = tl.load(cos_ptr + place * cos_p + i * cos_i, mask=known, other=float("nan"))  # [1, HALF]
    s = tl.load(sin_ptr + place * sin_p + i * sin_i, mask=known, other=float("nan")) * sign
    blocks = tl.cdiv(heads, HEADS)
    if tl.program_id(1) < blocks:
        turn_heads(
            q_ptr + batch * q_b + token * q_t, q_out_ptr + row * heads * dim, q_h, q_d, heads, dim, half,
            tl.program_id(1), c, s, HEADS, HALF, REST, INTERLEAVED,
        )  # fmt: skip
    else:
        turn_heads(
            k_ptr + batch * k_b + token * k_t, k_out_ptr + row * kv_heads * dim, k_h, k_d, kv_heads, dim, half,
            tl.program_id(1) - blocks, c, s, HEADS, HALF, REST, INTERLEAVED,
        )  # fmt: skip


def rotate(
    q: Any, k: Any, cos: Any, sin: Any, positions: Any, q_out: Any, k_out: Any, interleaved: bool, sign: float,
    heads_a_program: int, num_warps: int,
) -> None:  # fmt: skip
    """q and k [batch, tokens, heads, dim] turned by `sign` times the angles, in one launch."""
    batch, tokens, heads, dim = q.shape
    kv_heads, (places, half) = k.shape[2], cos.shape
    blocks = triton.cdiv(heads, heads_a_program) + triton.cdiv(kv_heads, heads_a_program)
    if not batch * tokens * blocks:
        return
    rest = dim - 2 * half
    rotate_tokens[(batch * tokens, blocks)](
        q, k, cos, sin, positions, q_out, k_out, *q.stride(), *k.stride(), *cos.stride(), *sin.stride(),
        *((0, 0) if positions is None else positions.stride()), tokens, heads, kv_heads, dim, half, places, sign,
        POSITIONS=positions is not None, HEADS=heads_a_program, HALF=triton.next_power_of_2(half),
        REST=triton.next_power_of_2(rest) if rest else 0, INTERLEAVED=interleaved, num_warps=num_warps,
    )  # fmt: skip
