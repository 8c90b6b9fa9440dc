"""Attention's forward pass over blocks of queries and keys: what is seen, steps of the online softmax, launch."""

import functools
import math
from collections.abc import Callable

import torch
import triton
import triton.language as tl

from opforge.device.triton.attention_sides import arguments_of, joined, kept, keys_of
from opforge.device.triton.gemm import room

SPACE = {
    "BLOCK_M": (16, 32, 64, 128),
    "BLOCK_N": (16, 32, 64, 128),
    "num_warps": (4, 8),
    "num_stages": (1, 2, 3, 4),
    "MAXREG": (0, 128),
}
LIMITS = {
    "sums_fit_registers": "BLOCK_M * (BLOCK_N + next_pow2(value_dim)) <= 8192 * num_warps",
    "stages_fit_shared_memory": "(BLOCK_M * next_pow2(head_dim) + num_stages * BLOCK_N * (next_pow2(head_dim) + "
    "next_pow2(value_dim))) * itemsize <= shared_bytes_per_block",
    "no_block_beyond_the_lengths": "BLOCK_M <= max(16, 2 * queries) and BLOCK_N <= max(16, 2 * keys)",
}
SUPPORTS = {"a_block_fits": "max(16, next_pow2(head_dim)) + max(16, next_pow2(value_dim)) <= 2048"}
DEFAULT = {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2, "MAXREG": 0}

LEAST = 16
"""Rows and columns of the smallest block: a product of matrices sums 16 terms at the least."""

UNROLLED_SUMS = 2048
"""Sums and elements of queries of a warp where products are unrolled multiplications (float32), 64 a thread: from twice
as many on they leave the registers, and a block of 64 by 544 takes a compiler two minutes.
"""

FAR = tl.constexpr(2**30)
"""A window without a limit reaches this far."""

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def capped_tanh(x):
    # 1 - 2 / (exp(2x) + 1): right at both ends, where exp is 0 or infinite
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@triton.jit
def scores_of(q, k, scale, softcap, CAP: tl.constexpr):
    """Scores of a block [M, N] times log2(e), so that exp2 takes them."""
    s = tl.dot(q, tl.trans(k), input_precision="ieee")
    if CAP:
        return softcap * capped_tanh(s * (scale / softcap)) * LOG2E
    return s * (scale * LOG2E)


@triton.jit
def unit_of(scale, CAP: tl.constexpr, BIAS: tl.constexpr, ALIBI: tl.constexpr):
    """What the largest score is to be multiplied by to be in units of log(2): 1 where something was added to scores, or
    they were capped.
    """
    if BIAS or ALIBI or CAP:
        return 1.0
    return scale * LOG2E


@triton.jit
def seen_of(rows, cols, shift, left, right):
    """[M, N]: whether the query in a row sees the key in a column."""
    distance = cols[None, :] - rows[:, None] - shift
    return (distance >= -left) & (distance <= right)


@triton.jit
def steps(
    acc, total, peak, q, k_ptr, v_ptr, rows, shift, left, right, keys, head_dim, value_dim, sk_n, sk_d, sv_n, sv_d,
    scale, softcap, b, h, queries, bias_at, bias_n, bias_k, mask_at, mask_n, mask_k, slope, seed, least, offset, first,
    last, CAP: tl.constexpr, MASKED: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    WHOLE_D: tl.constexpr, WHOLE_E: tl.constexpr, BIAS: tl.constexpr, MASK: tl.constexpr, ALIBI: tl.constexpr,
    DROPOUT: tl.constexpr,
):  # fmt: skip
    """Keys from `first` up to `last`, a block at a time, into what a block of queries keeps. `peak` is in units of
    `unit_of`.
    """
    d = tl.arange(0, D)
    e = tl.arange(0, E)
    for start in range(first, last, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        inside = cols < keys
        # int64: a row's place leaves int32 beyond 2^31 elements
        k_at = k_ptr + cols[:, None].to(tl.int64) * sk_n + d[None, :] * sk_d
        v_at = v_ptr + cols[:, None].to(tl.int64) * sv_n + e[None, :] * sv_d
        if MASKED:
            k = tl.load(k_at, mask=inside[:, None] & (d < head_dim)[None, :], other=0.0)
        elif WHOLE_D:
            k = tl.load(k_at)
        else:
            k = tl.load(k_at, mask=(d < head_dim)[None, :], other=0.0)
        if BIAS or ALIBI or CAP:
            s = scores_of(q, k, scale, softcap, CAP)
        else:
            # scaled after the largest one is taken off: the compiler would fuse a product before with that subtraction,
            # whose other side is a rounded product, and what is left of large ones would leave the range of weights
            s = tl.dot(q, tl.trans(k), input_precision="ieee")
        factor = unit_of(scale, CAP, BIAS, ALIBI)
        if BIAS or MASK or ALIBI:
            s = joined(
                s, rows, cols, shift, queries, keys, bias_at, bias_n, bias_k, mask_at, mask_n, mask_k, slope, BIAS,
                MASK, ALIBI,
            )  # fmt: skip
        if MASKED:
            s = tl.where(seen_of(rows, cols, shift, left, right) & inside[None, :], s, -float("inf"))
        higher = tl.maximum(peak, tl.max(s, 1))
        # a row that has seen nothing yet keeps -inf: its weights are exp2(-inf - 0) = 0, and no NaN
        base = tl.where(higher == -float("inf"), 0.0, higher)
        weights = tl.exp2((s - base[:, None]) * factor)
        shrink = tl.exp2((peak - base) * factor)
        total = total * shrink + tl.sum(weights, 1)
        if DROPOUT:
            weights = tl.where(kept(rows, start, b, h, seed, least, offset, BLOCK_N), weights, 0.0)
        acc = acc * shrink[:, None]
        if MASKED:
            v = tl.load(v_at, mask=inside[:, None] & (e < value_dim)[None, :], other=0.0)
        elif WHOLE_E:
            v = tl.load(v_at)
        else:
            v = tl.load(v_at, mask=(e < value_dim)[None, :], other=0.0)
        acc = tl.dot(weights.to(v.dtype), v, acc, input_precision="ieee")
        peak = higher
    return acc, total, peak


@triton.jit
def with_sink(acc, total, peak, sink):
    """A sink joins what a block of queries keeps; `peak` and `sink` in units of log(2)."""
    higher = tl.maximum(peak, sink)
    # which is the larger is asked of rounded products. Where it is this one, no difference is taken: the compiler would
    # take the rounded product off one that it fuses, and what is left of large ones would leave the range of weights
    base = tl.where(higher == -float("inf"), 0.0, higher)
    shrink = tl.where(peak < higher, tl.exp2(peak - base), 1.0)
    own = tl.where(sink < higher, tl.exp2(sink - base), tl.where(sink == -float("inf"), 0.0, 1.0))
    return acc * shrink[:, None], total * shrink + own, higher


# no variant of its own for a number that 16 divides, or for 1, where neither makes an instruction wider
@triton.jit(do_not_specialize=["heads", "group", "queries", "keys", "shift", "left", "right", "lengths_b", "slopes_h",
                               "sinks_h", "seed", "least", "offset"])  # fmt: skip
def forward(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, sq_b, sq_h, sq_n, sq_d, sk_b, sk_h, sk_n, sk_d, sv_b, sv_h, sv_n, sv_d,
    heads, group, queries, keys, head_dim, value_dim, shift, left, right, scale, softcap,
    lengths_ptr, lengths_b, bias_ptr, bias_b, bias_h, bias_n, bias_k, mask_ptr, mask_b, mask_h, mask_n, mask_k,
    slopes_ptr, slopes_h, sinks_ptr, sinks_h, seed, least, offset, grow,
    CAP: tl.constexpr, NEGATIVE: tl.constexpr, LIMITED: tl.constexpr, BEHIND: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, WHOLE_D: tl.constexpr, WHOLE_E: tl.constexpr, LENGTHS: tl.constexpr,
    BIAS: tl.constexpr, MASK: tl.constexpr, ALIBI: tl.constexpr, SINKS: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    # the last queries first: under a causal mask they see the most
    block = tl.cdiv(queries, BLOCK_M) - 1 - tl.program_id(1)
    b = (tl.program_id(0) // heads).to(tl.int64)
    h = (tl.program_id(0) % heads).to(tl.int64)
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, D)
    e = tl.arange(0, E)
    q_at = q_ptr + b * sq_b + h * sq_h + rows[:, None].to(tl.int64) * sq_n + d[None, :] * sq_d
    q = tl.load(q_at, mask=(rows < queries)[:, None] & (d < head_dim)[None, :], other=0.0)
    # the largest score is sought before scores are scaled, by |scale|. Known when this is compiled: a condition of the
    # launch would keep q in registers, which costs 12 % at 128 dimensions
    if NEGATIVE:
        q = -q
    k_head = k_ptr + b * sk_b + (h // group) * sk_h
    v_head = v_ptr + b * sv_b + (h // group) * sv_h
    keys = keys_of(lengths_ptr, lengths_b, b, keys, LENGTHS)
    bias_at, mask_at, slope = 0, 0, 0.0
    if BIAS:
        bias_at = bias_ptr + b * bias_b + h * bias_h
    if MASK:
        mask_at = mask_ptr + b * mask_b + h * mask_h
    if ALIBI:
        slope = tl.load(slopes_ptr + h * slopes_h)
    acc = tl.zeros([BLOCK_M, E], dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    peak = tl.full([BLOCK_M], -float("inf"), dtype=tl.float32)
    if SPLIT:
        top = block * BLOCK_M + shift
        bottom = top + BLOCK_M - 1
        begin = 0
        end = keys
        # blocks of keys from `clear` up to `edge` are seen whole by every query of the block
        clear = 0
        edge = keys // BLOCK_N * BLOCK_N
        if LIMITED:
            begin = tl.maximum(top - left, 0) // BLOCK_N * BLOCK_N
            end = tl.maximum(tl.minimum(bottom + right + 1, keys), 0)
            clear = tl.cdiv(tl.maximum(bottom - left, 0), BLOCK_N) * BLOCK_N
            edge = tl.minimum(edge, tl.maximum(top + right + 1, 0) // BLOCK_N * BLOCK_N)
        clear = tl.minimum(tl.maximum(clear, begin), end)
        edge = tl.maximum(edge, clear)
        if BEHIND:
            acc, total, peak = steps(
                acc, total, peak, q, k_head, v_head, rows, shift, left, right, keys, head_dim, value_dim, sk_n, sk_d,
                sv_n, sv_d, scale, softcap, b, h, queries, bias_at, bias_n, bias_k, mask_at, mask_n, mask_k, slope,
                seed, least, offset, begin, clear, CAP, True, BLOCK_N, D, E, WHOLE_D, WHOLE_E, BIAS, MASK, ALIBI,
                DROPOUT,
            )  # fmt: skip
        acc, total, peak = steps(
            acc, total, peak, q, k_head, v_head, rows, shift, left, right, keys, head_dim, value_dim, sk_n, sk_d,
            sv_n, sv_d, scale, softcap, b, h, queries, bias_at, bias_n, bias_k, mask_at, mask_n, mask_k, slope,
            seed, least, offset, clear, edge, CAP, False, BLOCK_N, D, E, WHOLE_D, WHOLE_E, BIAS, MASK, ALIBI,
            DROPOUT,
        )  # fmt: skip
        acc, total, peak = steps(
            acc, total, peak, q, k_head, v_head, rows, shift, left, right, keys, head_dim, value_dim, sk_n, sk_d,
            sv_n, sv_d, scale, softcap, b, h, queries, bias_at, bias_n, bias_k, mask_at, mask_n, mask_k, slope,
            seed, least, offset, edge, end, CAP, True, BLOCK_N, D, E, WHOLE_D, WHOLE_E, BIAS, MASK, ALIBI,
            DROPOUT,
        )  # fmt: skip
    else:
        acc, total, peak = steps(
            acc, total, peak, q, k_head, v_head, rows, shift, left, right, keys, head_dim, value_dim, sk_n, sk_d,
            sv_n, sv_d, scale, softcap, b, h, queries, bias_at, bias_n, bias_k, mask_at, mask_n, mask_k, slope,
            seed, least, offset, 0, keys, CAP, True, BLOCK_N, D, E, WHOLE_D, WHOLE_E, BIAS, MASK, ALIBI,
            DROPOUT,
        )  # fmt: skip
    # from here on in units of log(2)
    peak = peak * unit_of(scale, CAP, BIAS, ALIBI)
    if SINKS:
        acc, total, peak = with_sink(acc, total, peak, tl.load(sinks_ptr + h * sinks_h) * LOG2E)
    nothing = total == 0.0
    acc = acc / tl.where(nothing, 1.0, total)[:, None]
    if DROPOUT:
        acc = acc * grow
    # the maximum is in units of log2: back to the natural logarithm
    lse = tl.where(nothing, -float("inf"), (peak + tl.log2(tl.where(nothing, 1.0, total))) / LOG2E)
    line = (b * heads + h) * queries + rows
    tl.store(lse_ptr + line, lse, mask=rows < queries)
    out_at = out_ptr + line[:, None] * value_dim + e[None, :]
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=(rows < queries)[:, None] & (e < value_dim)[None, :])


def shrunk(
    fits_registers: Callable[[int, int, int], bool],
    fits_shared_memory: Callable[[int, int, int], bool],
    block_m: int,
    block_n: int,
    num_warps: int,
    num_stages: int,
    least_n: int = LEAST,
) -> tuple[int, int, int, int]:
    """(BLOCK_M, BLOCK_N, num_warps, num_stages): what is asked for, or the nearest below that fits where it doesn't.
    For registers: smaller blocks, the larger side first, then up to eight warps. For shared memory: fewer stages, then
    smaller blocks. The smallest where none fits.

    The first condition is asked of (block_m, block_n, num_warps), the second of (block_m, block_n, num_stages).
    """
    while True:
        held = fits_registers(block_m, block_n, num_warps)
        stored = fits_shared_memory(block_m, block_n, num_stages)
        larger = block_m > LEAST or block_n > least_n
        if held and stored:
            break
        if not held and not larger and num_warps < 8:
            num_warps *= 2
        elif not stored and num_stages > 1 and (held or not larger):
            num_stages -= 1
        elif block_m > LEAST and (block_m >= block_n or block_n <= least_n):
            block_m //= 2
        elif block_n > least_n:
            block_n //= 2
        else:
            break
    return block_m, block_n, num_warps, num_stages


@functools.cache
def shared_bytes(device: torch.device) -> int:
    """Bytes of shared memory that a block may have on a device."""
    return int(room(torch.empty(0, device=device)))


@functools.cache
def fitted(
    device: torch.device, itemsize: int, D: int, E: int, block_m: int, block_n: int, num_warps: int, num_stages: int
) -> tuple[int, int, int, int]:
    """`shrunk` for blocks of queries against keys of D and values of E elements. LIMITS speak of the sizes that a
    config was chosen for, this of all others.
    """
    most, unrolled = shared_bytes(device), itemsize == 4
    return shrunk(
        lambda m, n, warps: m * (n + E + unrolled * D) <= (UNROLLED_SUMS if unrolled else 8192) * warps,
        lambda m, n, stages: (m * D + stages * n * (D + E)) * itemsize <= most,
        block_m,
        block_n,
        num_warps,
        num_stages,
    )


def reach(queries: int, keys: int, causal: bool, left: int, right: int, alignment: str) -> tuple[int, int, int, bool]:
    """(shift, left, right, limited): a query's position among the keys, how far it sees, whether that is limited."""
    shift = keys - queries if alignment == "bottom_right" else 0
    limited = causal or left >= 0 or right >= 0
    far = FAR.value
    return (
        shift,
        min(left, far) if left >= 0 else far,
        0 if causal else (min(right, far) if right >= 0 else far),
        limited,
    )


def launch_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    key_lengths: torch.Tensor | None,
    bias: torch.Tensor | None,
    mask: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    *,
    scale: float,
    causal: bool,
    window_left: int,
    window_right: int,
    alignment: str,
    softcap: float,
    dropout: float,
    seed: int,
    offset: int,
    SPLIT: bool,
    BLOCK_M: int,
    BLOCK_N: int,
    num_warps: int,
    num_stages: int,
    MAXREG: int = 0,
) -> None:
    """Launches `forward` for tensors of any strides, [batch, heads, length, dim]; out and lse contiguous."""
    batch, heads, queries, head_dim = q.shape
    keys, value_dim = v.shape[2:]
    if not out.numel():
        return
    shift, left, right, limited = reach(queries, keys, causal, window_left, window_right, alignment)
    beside, flags = arguments_of(q, key_lengths, bias, mask, alibi_slopes, sinks, dropout, seed, offset)
    D, E = (max(LEAST, triton.next_power_of_2(size)) for size in (head_dim, value_dim))
    BLOCK_M, BLOCK_N, num_warps, num_stages = fitted(
        q.device, q.element_size(), D, E, BLOCK_M, BLOCK_N, num_warps, num_stages
    )
    forward[(batch * heads, triton.cdiv(queries, BLOCK_M))](
        q, k, v, out, lse, *q.stride(), *k.stride(), *v.stride(), heads, heads // k.shape[1], queries, keys,
        head_dim, value_dim, shift, left, right, abs(scale) or 1.0 / math.sqrt(head_dim), softcap or 1.0, *beside,
        CAP=softcap > 0, NEGATIVE=scale < 0, LIMITED=limited, BEHIND=window_left >= 0, SPLIT=SPLIT, BLOCK_M=BLOCK_M,
        BLOCK_N=BLOCK_N, D=D, E=E, WHOLE_D=head_dim == D, WHOLE_E=value_dim == E, num_warps=num_warps,
        num_stages=num_stages,
        **({"maxnreg": MAXREG} if MAXREG else {}), **flags,
    )  # fmt: skip
