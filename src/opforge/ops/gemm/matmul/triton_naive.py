"""One program for each small block of c, one term of the sum at a time: what everything else is measured against.

moves     a is read cdiv(n, COLS) times and b cdiv(m, ROWS) times, a column and a row at a time
limits    ROWS * COLS products wait for the two loads before them: nothing is under way meanwhile, and no tensor core is
          asked
"""

import triton
import triton.language as tl

LAYOUTS = ("contiguous", "rows", "strided")
SPACE = {"ROWS": (1, 8, 16, 32, 64), "COLS": (32, 64, 128, 256), "num_warps": (1, 2, 4, 8)}
LIMITS = {
    "every_lane_has_an_element": "ROWS * COLS >= 32 * num_warps",
    "sums_fit_registers": "ROWS * COLS <= 4096 * num_warps",
    "no_block_beyond_the_result": "COLS <= max(32, 2 * n) and ROWS <= max(1, 2 * m)",
}
DEFAULT = {"ROWS": 32, "COLS": 64, "num_warps": 4}


@triton.jit
def term_by_term(a, b, c, m, n, k, a_row, a_col, b_row, b_col, c_row, c_col, ROWS: tl.constexpr, COLS: tl.constexpr):
    # int64: row * stride leaves int32 beyond 2^31 elements
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)  # [ROWS]
    col = (tl.program_id(1) * COLS + tl.arange(0, COLS)).to(tl.int64)  # [COLS]
    a_at, b_at = a + row * a_row, b + col * b_col
    sums = tl.zeros((ROWS, COLS), dtype=tl.float32)
    for _ in range(k):
        left = tl.load(a_at, mask=row < m, other=0.0).to(tl.float32)
        right = tl.load(b_at, mask=col < n, other=0.0).to(tl.float32)
        sums += left[:, None] * right[None, :]
        a_at += a_col
        b_at += b_row
    tl.store(
        c + row[:, None] * c_row + col[None, :] * c_col,
        sums.to(c.dtype.element_ty),
        mask=(row < m)[:, None] & (col < n)[None, :],
    )


def launch(a, b, c, *, precision, ROWS, COLS, num_warps):
    (m, k), n = a.shape, b.shape[1]
    grid = (triton.cdiv(m, ROWS), triton.cdiv(n, COLS))
    term_by_term[grid](
        a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(), ROWS=ROWS, COLS=COLS, num_warps=num_warps
    )
