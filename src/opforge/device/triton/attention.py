"""What attention kernels share: which blocks of keys a block of queries sees whole, in part or not at all, and the
scores of a block.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def key_ranges(first, nk, offset, left, right, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
               LEFT: tl.constexpr, RIGHT: tl.constexpr):  # fmt: skip
    """Of queries first .. first + BLOCK_M: from `begin` to `inner` and from `outer` to `end` lie blocks of keys that
    some of them see in part, from `inner` to `outer` those that all see whole.
    """
    begin, inner = 0, 0
    end, outer = nk, nk // BLOCK_N * BLOCK_N
    if RIGHT:
        end = tl.maximum(0, tl.minimum(nk, first + BLOCK_M + offset + right))
        outer = tl.minimum(outer, tl.maximum(0, first + offset + right + 1) // BLOCK_N * BLOCK_N)
    if LEFT:
        begin = tl.maximum(0, first + offset - left) // BLOCK_N * BLOCK_N
        inner = (tl.maximum(0, first + BLOCK_M - 1 + offset - left) + BLOCK_N - 1) // BLOCK_N * BLOCK_N
    # a window narrower than a block: nothing is seen whole
    inner = tl.minimum(tl.maximum(inner, begin), (end + BLOCK_N - 1) // BLOCK_N * BLOCK_N)
    outer = tl.maximum(inner, outer)
    return begin, inner, outer, end


@triton.jit
def tile(base, rows, cols, row_stride, col_stride, row_count, col_count, ROWS: tl.constexpr, COLS: tl.constexpr):
    """[rows, cols] of a matrix; 0 where ROWS or COLS says that it may end inside."""
    pointers = base + rows[:, None].to(tl.int64) * row_stride + cols[None, :] * col_stride
    if ROWS and COLS:
        found = tl.load(pointers, mask=(rows < row_count)[:, None] & (cols < col_count)[None, :], other=0.0)
    elif ROWS:
        found = tl.load(pointers, mask=(rows < row_count)[:, None], other=0.0)
    elif COLS:
        found = tl.load(pointers, mask=(cols < col_count)[None, :], other=0.0)
    else:
        found = tl.load(pointers)
    return found


@triton.jit
def capped(products, scale, cap, CAP: tl.constexpr):
    """Scores in units of log(2): `scale` has log2(e) in it already, unless there is a cap."""
    if CAP:
        ratio = products * (scale / cap)
        # tanh by an exponential of a negative number: nothing overflows, and small arguments keep their digits
        size, square = tl.abs(ratio), ratio * ratio
        small = tl.exp2(-2 * LOG2_E * size)
        series = size * (1 - square * (0.33333333 - square * 0.13333333))
        size = tl.where(size < 0.05, series, (1 - small) / (1 + small))
        return tl.where(ratio < 0, -size, size) * (cap * LOG2_E)
    else:
        return products * scale


@triton.jit
def sees(rows, cols, nk, offset, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """Which of [rows, cols] have a part."""
    seen = (cols < nk)[None, :] & (rows >= 0)[:, None]
    if RIGHT:
        seen = seen & (cols[None, :] <= rows[:, None] + (offset + right))
    if LEFT:
        seen = seen & (cols[None, :] >= rows[:, None] + (offset - left))
    return seen
