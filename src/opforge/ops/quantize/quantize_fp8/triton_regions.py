"""A program for some rows and the columns that share their scales: largest magnitude first, then the rounding.

moves     x is read from memory once, and again from the cache where a row is longer than a step; q is written once. One
          scale for the whole tensor costs a reading of x before that
limits    blocks of 1 x 128 and tiles of 128 x 128 are read once; rows in steps of COLS
"""

import torch
import triton
import triton.language as tl

LAYOUTS = ("contiguous", "rows", "strided")
SUPPORTS = {"there_is_something": "m > 0 and k > 0"}  # nothing has a scale too, and no kernel runs for it
SPACE = {"ROWS": (1, 2, 4, 8, 16), "COLS": (512, 1024, 2048, 4096), "num_warps": (4, 8)}
LIMITS = {
    "the_device_knows_fp8": "'float8' in capabilities or 'float8_fnuz' in capabilities",
    "registers_hold_a_step": "ROWS * COLS <= 8192 * num_warps // 4",
    "no_step_beyond_a_row": "COLS <= max(512, next_pow2(k)) or scaling not in ('row', 'tensor')",
}
DEFAULT = {"ROWS": 4, "COLS": 1024, "num_warps": 4}
LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
PARTIALS = 1024


@triton.jit
def finite(values):
    """Which float32 values are neither infinite nor NaN."""
    return tl.abs(values) <= 3.4028234663852886e38


@triton.jit
def rounded(values, scale, LARGEST: tl.constexpr, Q: tl.constexpr):
    """values / scale in the format Q, at the most its largest number; NaN for what is not finite."""
    divided = tl.minimum(tl.maximum(tl.div_rn(values, scale), -LARGEST), LARGEST)
    return tl.where(finite(values), divided, float("nan")).to(Q)


@triton.jit
def scale_of(largest, LARGEST: tl.constexpr):
    # 2^-126: what zeros are divided by, too
    return tl.maximum(tl.div_rn(largest, tl.full(largest.shape, LARGEST, tl.float32)), 1.1754943508222875e-38)


@triton.jit
def load_piece(x, row, col, m, k, x_row, x_col):
    """float32 [rows, cols] at int64 row and col; zero beyond the edges."""
    return tl.load(
        x + row[:, None] * x_row + col[None, :] * x_col, mask=(row < m)[:, None] & (col < k)[None, :], other=0.0
    ).to(tl.float32)


@triton.jit
def quantize_rows(x, q, scales, partials, m, k, x_row, x_col, q_row, q_col, s_row, count,
                  ROWS: tl.constexpr, COLS: tl.constexpr, COUNT: tl.constexpr, ONE: tl.constexpr,
                  LARGEST: tl.constexpr, Q: tl.constexpr):  # fmt: skip
    """Whole rows, a scale each; with ONE, the one scale that `count` partial largest magnitudes give."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    if ONE:
        place = tl.arange(0, COUNT)
        scale = scale_of(tl.max(tl.load(partials + place, mask=place < count, other=0.0), axis=0)[None], LARGEST)
        tl.store(scales + tl.arange(0, 1), scale, mask=(tl.program_id(0) == 0) & (tl.arange(0, 1) == 0))
    else:
        largest = tl.zeros((ROWS, COLS), tl.float32)
        for first in range(0, k, COLS):
            values = load_piece(x, row, (first + tl.arange(0, COLS)).to(tl.int64), m, k, x_row, x_col)
            largest = tl.maximum(largest, tl.where(finite(values), tl.abs(values), 0.0))
        scale = scale_of(tl.max(largest, axis=1), LARGEST)
        tl.store(scales + row * s_row, scale, mask=row < m)
    for first in range(0, k, COLS):
        col = (first + tl.arange(0, COLS)).to(tl.int64)
        values = load_piece(x, row, col, m, k, x_row, x_col)
        codes = rounded(values, scale[:, None], LARGEST, Q)
        tl.store(q + row[:, None] * q_row + col[None, :] * q_col, codes, mask=(row < m)[:, None] & (col < k)[None, :])


@triton.jit
def largest_of_rows(x, partials, m, k, x_row, x_col, ROWS: tl.constexpr, COLS: tl.constexpr):
    """The largest magnitude of every num_programs-th group of rows."""
    largest = tl.zeros((ROWS, COLS), tl.float32)
    for group in range(tl.program_id(0), tl.cdiv(m, ROWS), tl.num_programs(0)):
        row = (group * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        for first in range(0, k, COLS):
            values = load_piece(x, row, (first + tl.arange(0, COLS)).to(tl.int64), m, k, x_row, x_col)
            largest = tl.maximum(largest, tl.where(finite(values), tl.abs(values), 0.0))
    tl.store(partials + tl.program_id(0), tl.max(tl.max(largest, axis=1), axis=0))


@triton.jit
def quantize_tiles(x, q, scales, m, k, x_row, x_col, q_row, q_col, s_row, s_block,
                   HEIGHT: tl.constexpr, TOGETHER: tl.constexpr, LARGEST: tl.constexpr, Q: tl.constexpr):  # fmt: skip
    """HEIGHT rows of one block of 128 columns: all of them share a scale (TOGETHER), or each has its own."""
    row = tl.program_id(0).to(tl.int64) * HEIGHT + tl.arange(0, HEIGHT)
    block = tl.program_id(1).to(tl.int64)
    col = block * 128 + tl.arange(0, 128)
    values = load_piece(x, row, col, m, k, x_row, x_col)
    largest = tl.max(tl.where(finite(values), tl.abs(values), 0.0), axis=1)
    if TOGETHER:
        scale = scale_of(tl.max(largest, axis=0)[None], LARGEST)
        tl.store(scales + tl.program_id(0).to(tl.int64) * s_row + block * s_block + tl.arange(0, 1), scale)
    else:
        scale = scale_of(largest, LARGEST)
        tl.store(scales + row * s_row + block * s_block, scale, mask=row < m)
    codes = rounded(values, scale[:, None], LARGEST, Q)
    tl.store(q + row[:, None] * q_row + col[None, :] * q_col, codes, mask=(row < m)[:, None] & (col < k)[None, :])


def launch(x, q, scale, *, scaling, q_dtype, ROWS, COLS, num_warps):
    m, k = x.shape
    if 0 in (m, k):
        return
    form = {"LARGEST": LARGEST[q_dtype], "Q": tl.float8e4nv if q_dtype == "float8_e4m3fn" else tl.float8e5}
    if scaling in ("block", "tile"):
        height = 128 if scaling == "tile" else ROWS * 4
        grid = (triton.cdiv(m, height), triton.cdiv(k, 128))
        quantize_tiles[grid](
            x,
            q,
            scale,
            m,
            k,
            *x.stride(),
            *q.stride(),
            *scale.stride(),
            HEIGHT=height,
            TOGETHER=scaling == "tile",
            num_warps=8 if scaling == "tile" else num_warps,
            **form,
        )
        return
    groups = triton.cdiv(m, ROWS)
    partials, count = scale, 0
    if scaling == "tensor":
        count = min(groups, PARTIALS)
        partials = torch.empty(count, dtype=torch.float32, device=x.device)
        largest_of_rows[(count,)](x, partials, m, k, *x.stride(), ROWS=ROWS, COLS=COLS, num_warps=num_warps)
    quantize_rows[(groups,)](
        x, q, scale, partials, m, k, *x.stride(), *q.stride(), scale.stride(0), count,
        ROWS=ROWS, COLS=COLS, COUNT=triton.next_power_of_2(max(count, 1)), ONE=scaling == "tensor",
        num_warps=num_warps, **form,
    )  # fmt: skip
