"""Programs that stay: each takes every n-th tile of rows, whole rows in registers, and keeps the sums of dweight and dbias there too.

moves     3 * rows * cols * itemsize bytes: the least possible; a row of partial sums for each program, added up by a second kernel
limits    rows up to 16384 wide: x, dy and two sums of 32 elements each in every thread of 16 warps
"""

import torch
import triton
import triton.language as tl

LAYOUTS = ("contiguous", "rows")
SUPPORTS = {"row_fits_one_block": "cols <= 16384"}
TILE = 2048  # elements of a tile of several rows: 16 registers in each of 4 warps
PROGRAMS = 4  # of a multiprocessor, where rows are narrow


@triton.jit
def gradient_rows(x_ptr, weight_ptr, dy_ptr, dx_ptr, partial_ptr, rows, cols, x_stride, dy_stride, dx_stride, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    col = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    weight = tl.load(weight_ptr + col, mask=col < cols, other=0.0).to(tl.float32)
    dweight = tl.zeros([1, BLOCK], tl.float32)
    dbias = tl.zeros([1, BLOCK], tl.float32)
    for start in range(program * ROWS, rows, tl.num_programs(0) * ROWS):
        # int64: row * stride leaves int32 beyond 32768 x 65536 elements
        row = start + tl.arange(0, ROWS)[:, None].to(tl.int64)  # [ROWS, 1]
        inside = (row < rows) & (col < cols)
        x = tl.load(x_ptr + row * x_stride + col, mask=inside, other=0.0).to(tl.float32)  # [ROWS, BLOCK]
        dy = tl.load(dy_ptr + row * dy_stride + col, mask=inside, other=0.0).to(tl.float32)
        centred = tl.where(inside, x - tl.sum(x, axis=1, keep_dims=True) / cols, 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1, keep_dims=True) / cols + eps)  # [ROWS, 1]
        h = centred * scale
        g = dy * weight
        level = tl.sum(g, axis=1, keep_dims=True) / cols
        slope = tl.sum(g * h, axis=1, keep_dims=True) / cols
        dx = (g - level - h * slope) * scale
        tl.store(dx_ptr + row * dx_stride + col, dx.to(dx_ptr.dtype.element_ty), mask=inside)
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
    tl.store(dweight_ptr + col, tl.sum(dweight, axis=0, keep_dims=True).to(dweight_ptr.dtype.element_ty), mask=inside)
    tl.store(dbias_ptr + col, tl.sum(dbias, axis=0, keep_dims=True).to(dbias_ptr.dtype.element_ty), mask=inside)


def launch(x, weight, dy, dx, dweight, dbias, *, eps):
    rows, cols = x.shape
    block = triton.next_power_of_2(cols)
    several = max(1, min(TILE // block, triton.next_power_of_2(rows)))
    warps = 4 if block <= 2048 else 8 if block <= 4096 else 16
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count if x.device.type == "cuda" else 2
    # one at the least: without rows it writes the sums of nothing
    programs = max(1, min(triton.cdiv(rows, several), processors * max(1, PROGRAMS * 4 // warps)))
    partial = torch.empty((programs, 2, cols), dtype=torch.float32, device=x.device)
    strides = (x.stride(0), dy.stride(0), dx.stride(0))
    gradient_rows[(programs,)](x, weight, dy, dx, partial, rows, cols, *strides, eps, ROWS=several, BLOCK=block, num_warps=warps)
    add_partial_sums[(triton.cdiv(cols, 32),)](partial, dweight, dbias, programs, cols, PARTS=32, BLOCK=32, num_warps=4)
