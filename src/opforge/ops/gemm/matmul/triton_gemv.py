"""A vector times a matrix: the matrix is read once, by so many programs that memory is never waited for; no tensor core
is asked.

moves     k * n * itemsize bytes: the matrix; sums of parts of k go through the second-level cache in float32
idea      a program takes COLS columns (or rows) over 1/SPLIT of k; the last of a column to finish adds the parts up,
          always in the same order, so that the result does not depend on who was last
limits    m = 1 or n = 1
"""

import torch
import triton
import triton.language as tl

from opforge.device.triton.gemm import counters_for

SUPPORTS = {"a_vector_and_a_matrix": "m == 1 or n == 1"}
LAYOUTS = ("contiguous", "rows", "strided")
SPACE = {
    "COLS": (32, 64, 128, 256, 512),
    "TERMS": (4, 8, 16, 32, 64, 128),
    "SPLIT": (1, 2, 4, 8, 16, 32, 64),
    "num_warps": (1, 2, 4, 8),
    "num_stages": (1, 2, 3, 4, 6),
}
LIMITS = {
    "a_tile_fits_registers": "COLS * TERMS * itemsize <= 8192 * num_warps",
    "every_lane_loads_16_bytes": "COLS * TERMS * itemsize >= 512 * num_warps",
    "stages_fit_shared_memory": "num_stages == 1 or COLS * TERMS * itemsize * num_stages <= "
    "min(65536, shared_bytes_per_block)",
    "every_part_has_a_tile": "SPLIT * TERMS <= max(k, TERMS)",
}
DEFAULT = {"COLS": 256, "TERMS": 32, "SPLIT": 16, "num_warps": 4, "num_stages": 1}


@triton.jit
def vector_times_matrix(
    x, w, y, parts, counters, n, k, x_stride, w_row, w_col, y_stride,
    COLS: tl.constexpr, TERMS: tl.constexpr, SPLIT: tl.constexpr, STEPS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    block, part = tl.program_id(0), tl.program_id(1)
    col = block * COLS + tl.arange(0, COLS)  # [COLS]
    inside = col < n
    begin = part * STEPS * TERMS
    end = min(k, begin + STEPS * TERMS)
    sums = tl.zeros((TERMS, COLS), dtype=tl.float32)
    for start in tl.range(begin, end, TERMS, num_stages=STAGES):
        term = start + tl.arange(0, TERMS)  # [TERMS]
        there = term < end
        factor = tl.load(x + term.to(tl.int64) * x_stride, mask=there, other=0.0).to(tl.float32)
        # int64: row * stride leaves int32 beyond 2^31 elements
        at = w + term.to(tl.int64)[:, None] * w_row + col.to(tl.int64)[None, :] * w_col
        tile = tl.load(at, mask=there[:, None] & inside[None, :], other=0.0)
        sums += factor[:, None] * tile.to(tl.float32)
    total = tl.sum(sums, axis=0)  # [COLS]
    if SPLIT == 1:
        tl.store(y + col.to(tl.int64) * y_stride, total.to(y.dtype.element_ty), mask=inside)
    else:
        tl.store(parts + (part * tl.num_programs(0) + block) * COLS + tl.arange(0, COLS), total)
        # every thread's part must be written before the count says so
        tl.debug_barrier()
        if tl.atomic_add(counters + block, 1, sem="acq_rel") == SPLIT - 1:
            which = tl.arange(0, SPLIT)
            all_parts = tl.load(
                parts + (which[:, None] * tl.num_programs(0) + block) * COLS + tl.arange(0, COLS)[None, :],
                cache_modifier=".cg",
            )
            tl.store(y + col.to(tl.int64) * y_stride, tl.sum(all_parts, axis=0).to(y.dtype.element_ty), mask=inside)
            # ready for the next call
            tl.store(counters + block, 0)


def launch(a, b, c, *, precision, COLS, TERMS, SPLIT, num_warps, num_stages):
    (m, k), n = a.shape, b.shape[1]
    if m == 1:
        x, w, y, x_stride, y_stride = a, b, c, a.stride(1), c.stride(1)
    else:
        # c^T = b^T a^T
        x, w, y, x_stride, y_stride, n = b, a.T, c, b.stride(0), c.stride(0), m
    if w.stride(0) == 1 and w.stride(1) != 1:
        # columns lie in memory one after another: a tile is as tall as it was wide
        COLS, TERMS = TERMS, COLS
    steps = triton.cdiv(triton.cdiv(k, TERMS), SPLIT)
    blocks = triton.cdiv(n, COLS)
    parts = torch.empty(SPLIT * blocks * COLS if SPLIT > 1 else 0, dtype=torch.float32, device=c.device)
    counters = counters_for(c.device, blocks)
    vector_times_matrix[(blocks, SPLIT)](
        x,
        w,
        y,
        parts,
        counters,
        n,
        k,
        x_stride,
        *w.stride(),
        y_stride,
        COLS=COLS,
        TERMS=TERMS,
        SPLIT=SPLIT,
        STEPS=steps,
        STAGES=num_stages,
        num_warps=num_warps,
    )
