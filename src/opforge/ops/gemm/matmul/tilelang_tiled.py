"""Tiles in shared memory and T.gemm on the tensor cores; float32 in plain multiply-adds; packed cache blocks on the C
target.

moves     a is read cdiv(n, BLOCK_N) times and b cdiv(m, BLOCK_M) times, mostly from the second-level cache
limits    TMA (T.copy) fills the pipeline where rows begin at multiples of 16 bytes and k is not short; elsewhere tiles
          are loaded element by element behind masks, so that any size and address is right
precision T.gemm would round float32 operands to TF32: they take a route of their own, which does for either precision
"""

import tilelang.language as T

from opforge.device.tilelang.gemm import masked_product
from opforge.device.tilelang.tools import both, from_float32, storage, to_float32

SPACE = {
    "BLOCK_M": (64, 128, 256),
    "BLOCK_N": (64, 128, 256),
    "BLOCK_K": (32, 64),
    "num_stages": (2, 3, 4),
    "threads": (128, 256),
    "pipelined": (False, True),
    "panel": (0, 4, 8, 16),
    "by_rows": (False, True),
}
SUPPORTS = {"an_operand_to_point_at": "k > 0"}
LIMITS = {
    "stages_fit_shared_memory": "max((BLOCK_M + BLOCK_N) * BLOCK_K * num_stages, BLOCK_M * BLOCK_N) * 2 + 1024 <= "
    "shared_bytes_per_block",
    "sums_fit_registers": "BLOCK_M * BLOCK_N <= 128 * threads",
}
BEST = {"rows_that_tma_fetches": "k % 8 == 0 and n % 8 == 0 and m >= 64 and n >= 256 and k >= 512"}
"""What `variant` leaves to the config: other calls load element by element, behind masks, without a pipeline."""
DEFAULT = {
    "BLOCK_M": 128,
    "BLOCK_N": 256,
    "BLOCK_K": 64,
    "num_stages": 3,
    "threads": 256,
    "pipelined": True,
    "panel": 8,
    "by_rows": True,
}
MASKED = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32, "pipelined": False}
UNALIGNED = MASKED
"""What becomes of a config where an address is no multiple of 16 bytes."""


def variant(axes, dtype):
    """TMA asks for rows at multiples of 16 bytes; and a pipeline for more than a few steps: one that ends in its first
    stalls.
    """
    lined_up = axes["k"] % 8 == 0 and axes["n"] % 8 == 0
    return {} if lined_up and axes["m"] >= 64 and axes["n"] >= 256 and axes["k"] >= 512 else MASKED


def program(*, dtype, target, precision, BLOCK_M, BLOCK_N, BLOCK_K, num_stages, threads, pipelined, panel, by_rows):
    if target == "c":
        return blocked_in_cache(dtype)
    if dtype == "float32":
        return plain_float32()
    if pipelined:
        return tensor_cores_pipelined(dtype, BLOCK_M, BLOCK_N, BLOCK_K, num_stages, threads, panel, by_rows)
    return masked_product(dtype, BLOCK_M, BLOCK_N, BLOCK_K, threads)


def blocked_in_cache(dtype, block_m=128, block_n=256, block_k=64):
    """For a CPU: a's and b's blocks are packed as float32, and eight terms are added to a row of c at a time, which g++
    vectorises.
    """
    m, n, k = T.dynamic("m"), T.dynamic("n"), T.dynamic("k")
    stored = storage(dtype, "c")

    def eight_terms(left, right, i, l, j):
        products = [left[i, l + t] * right[l + t, j] for t in range(8)]
        return ((products[0] + products[1]) + (products[2] + products[3])) + (
            (products[4] + products[5]) + (products[6] + products[7])
        )

    @T.prim_func
    def matmul(a: T.Tensor((m, k), stored), b: T.Tensor((k, n), stored), c: T.Tensor((m, n), stored)):
        with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m)) as (bx, by):
            left = T.alloc_local((block_m, block_k), "float32")
            right = T.alloc_local((block_k, block_n), "float32")
            total = T.alloc_local((block_m, block_n), "float32")
            for i, j in T.grid(block_m, block_n):
                total[i, j] = T.float32(0)
            for step in T.serial(T.ceildiv(k, block_k)):
                for i, l in T.grid(block_m, block_k):
                    left[i, l] = T.float32(0)
                    if both(by * block_m + i < m, step * block_k + l < k):
                        left[i, l] = to_float32(a[by * block_m + i, step * block_k + l], dtype, "c")
                for l, j in T.grid(block_k, block_n):
                    right[l, j] = T.float32(0)
                    if both(step * block_k + l < k, bx * block_n + j < n):
                        right[l, j] = to_float32(b[step * block_k + l, bx * block_n + j], dtype, "c")
                for i in T.serial(T.min(block_m, m - by * block_m)):
                    for l in T.serial(block_k // 8):
                        for j in T.serial(block_n):
                            total[i, j] += eight_terms(left, right, i, 8 * l, j)
            for i, j in T.grid(block_m, block_n):
                if both(by * block_m + i < m, bx * block_n + j < n):
                    c[by * block_m + i, bx * block_n + j] = from_float32(total[i, j], dtype, "c")

    return matmul


def tensor_cores_pipelined(dtype, block_m, block_n, block_k, num_stages, threads, panel, by_rows):
    m, n, k = T.dynamic("m"), T.dynamic("n"), T.dynamic("k")

    @T.prim_func
    def matmul(a: T.Tensor((m, k), dtype), b: T.Tensor((k, n), dtype), c: T.Tensor((m, n), dtype)):
        with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m), threads=threads) as (bx, by):
            left = T.alloc_shared((block_m, block_k), dtype)
            right = T.alloc_shared((block_k, block_n), dtype)
            sums = T.alloc_fragment((block_m, block_n), "float32")
            out = T.alloc_shared((block_m, block_n), dtype)
            if panel:
                # blocks that run together share panels of a and b in the second-level cache
                T.use_swizzle(panel, enable=True)
            T.clear(sums)
            for step in T.Pipelined(T.ceildiv(k, block_k), num_stages=num_stages):
                T.copy(a[by * block_m, step * block_k], left)
                T.copy(b[step * block_k, bx * block_n], right)
                # whole rows for each warpgroup: 64 x block_n a product reads less shared memory than two of half the
                # width
                T.gemm(left, right, sums, policy=T.GemmWarpPolicy.FullRow if by_rows else T.GemmWarpPolicy.Square)
            T.copy(sums, out)
            T.copy(out, c[by * block_m, bx * block_n])

    return matmul


def plain_float32(block_m=64, block_n=64, block_k=16, tile_m=8, tile_n=4):
    m, n, k = T.dynamic("m"), T.dynamic("n"), T.dynamic("k")

    @T.prim_func
    def matmul(a: T.Tensor((m, k), "float32"), b: T.Tensor((k, n), "float32"), c: T.Tensor((m, n), "float32")):
        with T.Kernel(
            T.ceildiv(n, block_n), T.ceildiv(m, block_m), threads=(block_m // tile_m) * (block_n // tile_n)
        ) as (bx, by):
            left = T.alloc_shared((block_k, block_m), "float32")
            right = T.alloc_shared((block_k, block_n), "float32")
            column = T.alloc_local((tile_m,), "float32")
            row = T.alloc_local((tile_n,), "float32")
            sums = T.alloc_local((tile_m, tile_n), "float32")
            thread = T.get_thread_binding()
            ty = thread // (block_n // tile_n)
            tx = thread % (block_n // tile_n)
            for i, j in T.grid(tile_m, tile_n):
                sums[i, j] = T.float32(0)
            for step in T.serial(T.ceildiv(k, block_k)):
                for i, l in T.Parallel(block_m, block_k):
                    left[l, i] = T.if_then_else(
                        both(by * block_m + i < m, step * block_k + l < k),
                        a[by * block_m + i, step * block_k + l],
                        T.float32(0),
                    )
                for l, j in T.Parallel(block_k, block_n):
                    right[l, j] = T.if_then_else(
                        both(step * block_k + l < k, bx * block_n + j < n),
                        b[step * block_k + l, bx * block_n + j],
                        T.float32(0),
                    )
                for l in T.serial(block_k):
                    for i in T.unroll(tile_m):
                        column[i] = left[l, ty * tile_m + i]
                    for j in T.unroll(tile_n):
                        row[j] = right[l, tx * tile_n + j]
                    for i in T.unroll(tile_m):
                        for j in T.unroll(tile_n):
                            sums[i, j] += column[i] * row[j]
            for i in T.unroll(tile_m):
                for j in T.unroll(tile_n):
                    if both(by * block_m + ty * tile_m + i < m, bx * block_n + tx * tile_n + j < n):
                        c[by * block_m + ty * tile_m + i, bx * block_n + tx * tile_n + j] = sums[i, j]

    return matmul
