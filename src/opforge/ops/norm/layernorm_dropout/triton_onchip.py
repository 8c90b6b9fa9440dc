"""Rows up to 16384 wide stay in registers, several to a program when they are narrow; a thread makes the random words
of its own elements.

moves     2 * rows * cols * itemsize bytes up to 16384 columns: the least possible, no mask is stored; beyond, x is read
          three times (from L2 where it fits)
limits    widths that 4 does not divide make a block of four random words for every element: bound by arithmetic there
"""

import triton
import triton.language as tl

from opforge.core.philox import threshold
from opforge.device.triton.norms import (
    BLOCK,
    WIDEST,
    centred_rows,
    load_float,
    mean_of_row,
    normalised_rows,
    store_float,
    variance_of_row,
)
from opforge.device.triton.rows import tile_of_rows

SUPPORTS = {"some_stay": "p < 1"}
LAYOUTS = ("contiguous", "rows")


@triton.jit
def words_of(seed, row, start, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr, FOURS: tl.constexpr):
    """The words of the elements of rows `row` ([ROWS, 1]) from column `start` on: [ROWS, BLOCK]. FOURS says that rows
    are whole blocks of the generator.
    """
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
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    rows,
    cols,
    x_stride,
    y_stride,
    eps,
    seed,
    least,
    kept,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    FOURS: tl.constexpr,
):
    row, col, inside = tile_of_rows(rows, cols, ROWS, BLOCK)
    x = load_float(x_ptr + row * x_stride + col, inside)  # [ROWS, BLOCK]
    weight = load_float(weight_ptr + col, col < cols)
    bias = load_float(bias_ptr + col, col < cols)
    centred = centred_rows(x, inside, cols)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1, keep_dims=True) / cols + eps)  # [ROWS, 1]
    keep = words_of(seed, row, 0, cols, ROWS, BLOCK, FOURS) >= least.to(tl.uint32)
    y = tl.where(keep, (centred * scale * weight + bias) * kept, 0.0)
    store_float(y_ptr + row * y_stride + col, y, inside)


@triton.jit(do_not_specialize=["seed", "least"])
def normalise_and_drop_blocks(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    cols,
    x_stride,
    y_stride,
    eps,
    seed,
    least,
    kept,
    BLOCK: tl.constexpr,
    FOURS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * x_stride
    y_row = y_ptr + row * y_stride
    mean = mean_of_row(x_row, cols, BLOCK)
    scale = 1.0 / tl.sqrt(variance_of_row(x_row, mean, cols, BLOCK) + eps)
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    for start in range(0, cols, BLOCK):
        inside = start + col < cols
        x = load_float(x_row + start + col, inside)
        weight = load_float(weight_ptr + start + col, inside)
        bias = load_float(bias_ptr + start + col, inside)
        keep = words_of(seed, row + tl.arange(0, 1)[:, None], start, cols, 1, BLOCK, FOURS) >= least.to(tl.uint32)
        y = tl.where(keep, ((x - mean) * scale * weight + bias) * kept, 0.0)
        store_float(y_row + start + col, y, inside)


def launch(x, weight, bias, y, *, eps, p, seed):
    rows, cols = x.shape
    least, kept = threshold(p), 1 / (1 - p)
    fours = cols % 4 == 0
    if cols > WIDEST:
        grid = (rows,)
        normalise_and_drop_blocks[grid](
            x,
            weight,
            bias,
            y,
            cols,
            x.stride(0),
            y.stride(0),
            eps,
            seed,
            least,
            kept,
            BLOCK=BLOCK,
            FOURS=fours,
            num_warps=8,
        )
        return
    grid, config = normalised_rows(rows, cols)
    normalise_and_drop_rows[grid](
        x, weight, bias, y, rows, cols, x.stride(0), y.stride(0), eps, seed, least, kept, FOURS=fours, **config
    )
