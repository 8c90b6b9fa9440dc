"""Programs that stay: each takes every n-th tile of rows, whole rows in registers, and keeps the sums of dweight and
dbias there too.

moves     3 * rows * cols * itemsize bytes: the least possible; a row of partial sums for each program, added up by a
          second kernel
limits    rows up to 16384 wide: x, dy and two sums of 32 elements each in every thread of 16 warps
"""

import torch
import triton
import triton.language as tl

from opforge.device.triton.norms import centred_rows, load_float, normalised_rows, staying_programs, store_float

LAYOUTS = ("contiguous", "rows")
SUPPORTS = {"row_fits_one_block": "cols <= 16384"}


@triton.jit
def gradient_rows(
    x_ptr,
    weight_ptr,
    dy_ptr,
    dx_ptr,
    partial_ptr,
    rows,
    cols,
    x_stride,
    dy_stride,
    dx_stride,
    eps,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    weight = load_float(weight_ptr + col, col < cols)
    dweight = tl.zeros([1, BLOCK], tl.float32)
    dbias = tl.zeros([1, BLOCK], tl.float32)
    for start in range(program * ROWS, rows, tl.num_programs(0) * ROWS):
        # int64: row * stride leaves int32 beyond 32768 x 65536 elements
        row = start + tl.arange(0, ROWS)[:, None].to(tl.int64)  # [ROWS, 1]
        inside = (row < rows) & (col < cols)
        x = load_float(x_ptr + row * x_stride + col, inside)  # [ROWS, BLOCK]
        dy = load_float(dy_ptr + row * dy_stride + col, inside)
        centred = centred_rows(x, inside, cols)
        scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1, keep_dims=True) / cols + eps)  # [ROWS, 1]
        h = centred * scale
        g = dy * weight
        level = tl.sum(g, axis=1, keep_dims=True) / cols
        slope = tl.sum(g * h, axis=1, keep_dims=True) / cols
        dx = (g - level - h * slope) * scale
        store_float(dx_ptr + row * dx_stride + col, dx, inside)
        dweight += tl.sum(dy * h, axis=0, keep_dims=True)
        dbias += tl.sum(dy, axis=0, keep_dims=True)
    mine = partial_ptr + program.to(tl.int64) * 2 * cols
    tl.store(mine + col, dweight, mask=col < cols)
    tl.store(mine + cols + col, dbias, mask=col < cols)


@triton.jit
def add_partial_sums(partial_ptr, dweight_ptr, dbias_ptr, programs, cols, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    part = tl.arange(0, PARTS)[:, None]  # [PARTS, 1]
    dweight = tl.zeros([PARTS, BLOCK], tl.float32)
    dbias = tl.zeros([PARTS, BLOCK], tl.float32)
    for start in range(0, programs, PARTS):
        place = partial_ptr + (start + part.to(tl.int64)) * 2 * cols + col
        inside = (start + part < programs) & (col < cols)
        dweight += tl.load(place, mask=inside, other=0.0)
        dbias += tl.load(place + cols, mask=inside, other=0.0)
    inside = col < cols
    store_float(dweight_ptr + col, tl.sum(dweight, axis=0, keep_dims=True), inside)
    store_float(dbias_ptr + col, tl.sum(dbias, axis=0, keep_dims=True), inside)


def launch(x, weight, dy, dx, dweight, dbias, *, eps):
    rows, cols = x.shape
    _, config = normalised_rows(rows, cols)
    programs = staying_programs(rows, config, x.device)
    partial = torch.empty((programs, 2, cols), dtype=torch.float32, device=x.device)
    strides = (x.stride(0), dy.stride(0), dx.stride(0))
    gradient_rows[(programs,)](x, weight, dy, dx, partial, rows, cols, *strides, eps, **config)
    add_partial_sums[(triton.cdiv(cols, 32),)](partial, dweight, dbias, programs, cols, PARTS=32, BLOCK=32, num_warps=4)
