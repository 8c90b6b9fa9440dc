"""Tiles in shared memory and T.gemm on FP8 operands; every 128 terms the sums move to float32 and meet the scales of
their blocks.

moves     a is read cdiv(n, BLOCK_N) times and b cdiv(m, BLOCK_M) times, mostly from the second-level cache
limits    TMA (T.copy) fills the pipeline where rows begin at multiples of 16 bytes and k is not short; elsewhere tiles
          are loaded element by element behind masks. Both operands are of one format (T.gemm asks for that), and on a
          GPU: the C target has no FP8
"""

import tilelang.language as T

from opforge.device.tilelang.tools import both

ARCH = "sm_90a"
SUPPORTS = {"an_operand_to_point_at": "k > 0", "one_format": "dtype == b_dtype"}
SPACE = {
    "BLOCK_M": (64, 128),
    "BLOCK_N": (64, 128),
    "num_stages": (2, 3, 4),
    "threads": (128, 256),
    "panel": (0, 8),
    "pipelined": (False, True),
}
LIMITS = {
    "stages_fit_shared_memory": "(BLOCK_M + BLOCK_N) * 128 * num_stages + 1024 <= shared_bytes_per_block",
    "sums_fit_registers": "BLOCK_M * BLOCK_N <= 64 * threads",
}
DEFAULT = {"BLOCK_M": 128, "BLOCK_N": 128, "num_stages": 3, "threads": 256, "panel": 8, "pipelined": True}
MASKED = {"pipelined": False}
UNALIGNED = MASKED
"""What becomes of a config where an address is no multiple of 16 bytes."""


def variant(axes, dtype):
    """TMA asks for rows at multiples of 16 bytes; and a pipeline for more than a few steps: one that ends in its first
    stalls.
    """
    return {} if axes["k"] % 16 == 0 and axes["k"] >= 1024 else MASKED


def program(*, dtype, target, scaling, b_dtype, out_dtype, BLOCK_M, BLOCK_N, num_stages, threads, panel, pipelined):
    m, n, k = T.dynamic("m"), T.dynamic("n"), T.dynamic("k")
    a_rows, a_blocks, b_rows, b_blocks = (
        T.dynamic("a_rows"),
        T.dynamic("a_blocks"),
        T.dynamic("b_rows"),
        T.dynamic("b_blocks"),
    )
    blockwise = scaling == "block"

    # a scale of the tensor serves every row
    stride = 0 if scaling == "tensor" else 1

    @T.macro
    def add_scaled(sums, part, by_row, scale_a, scale_b, row, col, step):
        if blockwise:
            for i in T.Parallel(BLOCK_M):
                # 128 is a multiple of BLOCK_N: all columns here share one scale; beyond m lie sums that nobody stores
                by_row[i] = scale_a[T.min(row + i, m - 1), step] * scale_b[col // 128, step]
            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                sums[i, j] += part[i, j] * by_row[i]
        else:
            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                sums[i, j] += part[i, j]

    @T.prim_func
    def matmul_fp8(
        a: T.Tensor((m, k), dtype),
        b: T.Tensor((n, k), dtype),
        scale_a: T.Tensor((a_rows, a_blocks), "float32"),
        scale_b: T.Tensor((b_rows, b_blocks), "float32"),
        y: T.Tensor((m, n), out_dtype),
    ):
        with T.Kernel(T.ceildiv(n, BLOCK_N), T.ceildiv(m, BLOCK_M), threads=threads) as (bx, by):
            left = T.alloc_shared((BLOCK_M, 128), dtype)
            right = T.alloc_shared((BLOCK_N, 128), dtype)
            part = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")
            sums = T.alloc_fragment((BLOCK_M, BLOCK_N), "float32")
            by_row = T.alloc_fragment((BLOCK_M,), "float32")
            if panel:
                # blocks that run together share panels of a and b in the second-level cache
                T.use_swizzle(panel, enable=True)
            T.clear(sums)
            if pipelined:
                for step in T.Pipelined(T.ceildiv(k, 128), num_stages=num_stages):
                    T.copy(a[by * BLOCK_M, step * 128], left)
                    T.copy(b[bx * BLOCK_N, step * 128], right)
                    T.clear(part)
                    T.gemm(left, right, part, transpose_B=True)
                    add_scaled(sums, part, by_row, scale_a, scale_b, by * BLOCK_M, bx * BLOCK_N, step)
            else:
                for step in T.serial(T.ceildiv(k, 128)):
                    # both operands are zero beyond k: zero times whatever lies there could be NaN
                    for i, l in T.Parallel(BLOCK_M, 128):
                        left[i, l] = T.if_then_else(
                            both(by * BLOCK_M + i < m, step * 128 + l < k),
                            a[by * BLOCK_M + i, step * 128 + l],
                            T.Cast(dtype, 0),
                        )
                    for j, l in T.Parallel(BLOCK_N, 128):
                        right[j, l] = T.if_then_else(
                            both(bx * BLOCK_N + j < n, step * 128 + l < k),
                            b[bx * BLOCK_N + j, step * 128 + l],
                            T.Cast(dtype, 0),
                        )
                    T.clear(part)
                    T.gemm(left, right, part, transpose_B=True)
                    add_scaled(sums, part, by_row, scale_a, scale_b, by * BLOCK_M, bx * BLOCK_N, step)
            for i, j in T.Parallel(BLOCK_M, BLOCK_N):
                if both(by * BLOCK_M + i < m, bx * BLOCK_N + j < n):
                    if blockwise:
                        y[by * BLOCK_M + i, bx * BLOCK_N + j] = T.Cast(out_dtype, sums[i, j])
                    else:
                        y[by * BLOCK_M + i, bx * BLOCK_N + j] = T.Cast(
                            out_dtype,
                            sums[i, j]
                            * scale_a[(by * BLOCK_M + i) * stride, 0]
                            * scale_b[(bx * BLOCK_N + j) * stride, 0],
                        )

    return matmul_fp8
