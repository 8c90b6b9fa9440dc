"""Rows up to 16384 wide stay in registers, several to a program when they are narrow; a thread makes the random words of its own elements.

moves     2 * rows * cols * itemsize bytes up to 16384 columns: the least possible, no mask is stored; beyond, x is read three times (from L2 where it fits)
limits    widths that 4 does not divide make a block of four random words for every element: bound by arithmetic there
"""

import triton
import triton.language as tl

from opforge.core.philox import threshold

LAYOUTS = ("contiguous", "rows")
WIDEST = 16384  # columns kept in registers: 32 of each thread of 16 warps
TILE = 2048  # elements of a program that takes several rows: 16 registers in each of 4 warps
BLOCK = 4096  # columns read at a time from a wider row


@triton.jit
def words_of(seed, row, start, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr, FOURS: tl.constexpr):
    """The words of the elements of rows `row` ([ROWS, 1]) from column `start` on: [ROWS, BLOCK]. FOURS says that rows are whole blocks of the generator."""
    if FOURS:
        block = (row * cols + start) // 4 + tl.arange(0, BLOCK // 4)[None, :]
        low, high = (block & 0xFFFFFFFF).to(tl.uint32), (block >> 32).to(tl.uint32)
        a, b, c, d = tl.philox(seed, low, high, low * 0, low * 0)
        # [ROWS, BLOCK / 4, 2, 2], the last axis fastest: a, b, c, d
        return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [ROWS, BLOCK])
    index = row * cols + start + tl.arange(0, BLOCK)[None, :]
    block = index // 4
    low, high = (block & 0xFFFFFFFF).to(tl.uint32), (block >> 32).to(tl.uint32)
    a, b, c, d = tl.philox(seed, low, high, low * 0, low * 0)
    which = index % 4
    return tl.where(which == 0, a, tl.where(which == 1, b, tl.where(which == 2, c, d)))


# no variant of its own for a seed that 16 divides
@triton.jit(do_not_specialize=["seed", "least"])
def normalise_and_drop_rows(
    x_ptr, weight_ptr, bias_ptr, y_ptr, rows, cols, x_stride, y_stride, eps, seed, least, kept, ROWS: tl.constexpr, BLOCK: tl.constexpr, FOURS: tl.constexpr
):
    # int64: row * stride leaves int32 beyond 32768 x 65536 elements
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    inside = (row < rows) & (col < cols)
    x = tl.load(x_ptr + row * x_stride + col, mask=inside, other=0.0).to(tl.float32)  # [ROWS, BLOCK]
    weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
    centred = tl.where(inside, x - tl.sum(x, axis=1, keep_dims=True) / cols, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1, keep_dims=True) / cols + eps)  # [ROWS, 1]
    keep = words_of(seed, row, 0, cols, ROWS, BLOCK, FOURS) >= least.to(tl.uint32)
    y = tl.where(keep, (centred * scale * weight + bias) * kept, 0.0)
    tl.store(y_ptr + row * y_stride + col, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["seed", "least"])
def normalise_and_drop_blocks(x_ptr, weight_ptr, bias_ptr, y_ptr, cols, x_stride, y_stride, eps, seed, least, kept, BLOCK: tl.constexpr, FOURS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)[:, None]  # [1, 1]
    x_row = x_ptr + row * x_stride
    y_row = y_ptr + row * y_stride
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    # sums stay spread over the lanes until the end: fewer reductions, and smaller rounding errors
    total = tl.zeros([1, BLOCK], tl.float32)
    for start in range(0, cols, BLOCK):
        total += tl.load(x_row + start + col, mask=start + col < cols, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=1, keep_dims=True) / cols  # [1, 1]
    squares = tl.zeros([1, BLOCK], tl.float32)
    for start in range(0, cols, BLOCK):
        inside = start + col < cols
        x = tl.load(x_row + start + col, mask=inside, other=0.0).to(tl.float32)
        centred = tl.where(inside, x - mean, 0.0)
        squares += centred * centred
    scale = 1.0 / tl.sqrt(tl.sum(squares, axis=1, keep_dims=True) / cols + eps)
    for start in range(0, cols, BLOCK):
        inside = start + col < cols
        x = tl.load(x_row + start + col, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + start + col, mask=inside, other=0.0).to(tl.float32)
        bias = tl.load(bias_ptr + start + col, mask=inside, other=0.0).to(tl.float32)
        keep = words_of(seed, row, start, cols, 1, BLOCK, FOURS) >= least.to(tl.uint32)
        y = tl.where(keep, ((x - mean) * scale * weight + bias) * kept, 0.0)
        tl.store(y_row + start + col, y.to(y_ptr.dtype.element_ty), mask=inside)


def launch(x, weight, bias, y, *, eps, p, seed):
    rows, cols = x.shape
    least, kept = threshold(p), 1 / (1 - p)
    fours = cols % 4 == 0
    if cols > WIDEST:
        grid = (rows,)
        normalise_and_drop_blocks[grid](x, weight, bias, y, cols, x.stride(0), y.stride(0), eps, seed, least, kept, BLOCK=BLOCK, FOURS=fours, num_warps=8)
        return
    block = triton.next_power_of_2(cols)
    several = max(1, min(TILE // block, triton.next_power_of_2(rows)))
    warps = 4 if block <= 2048 else 8 if block <= 4096 else 16
    grid = (triton.cdiv(rows, several),)
    normalise_and_drop_rows[grid](x, weight, bias, y, rows, cols, x.stride(0), y.stride(0), eps, seed, least, kept, ROWS=several, BLOCK=block, FOURS=fours, num_warps=warps)
