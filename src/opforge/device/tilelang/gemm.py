"""Products in TileLang that files for matmul share: the one that takes any size and address."""

from typing import Any

import tilelang.language as T

from opforge.device.tilelang.tools import both


def masked_product(dtype: str, block_m: int, block_n: int, block_k: int, threads: int) -> Any:
    """c = a @ b in 16-bit elements: tiles loaded element by element behind masks, multiplied by T.gemm."""
    m, n, k = T.dynamic("m"), T.dynamic("n"), T.dynamic("k")

    @T.prim_func
    def matmul(a: T.Tensor((m, k), dtype), b: T.Tensor((k, n), dtype), c: T.Tensor((m, n), dtype)):
        with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m), threads=threads) as (bx, by):
            left = T.alloc_shared((block_m, block_k), dtype)
            right = T.alloc_shared((block_k, block_n), dtype)
            sums = T.alloc_fragment((block_m, block_n), "float32")
            T.clear(sums)
            for step in T.serial(T.ceildiv(k, block_k)):
                # both operands are zero beyond k: zero times whatever lies there could be NaN
                for i, l in T.Parallel(block_m, block_k):
                    left[i, l] = T.if_then_else(
                        both(by * block_m + i < m, step * block_k + l < k),
                        a[by * block_m + i, step * block_k + l],
                        T.Cast(dtype, 0),
                    )
                for l, j in T.Parallel(block_k, block_n):
                    right[l, j] = T.if_then_else(
                        both(step * block_k + l < k, bx * block_n + j < n),
                        b[step * block_k + l, bx * block_n + j],
                        T.Cast(dtype, 0),
                    )
                T.gemm(left, right, sums)
            for i, j in T.Parallel(block_m, block_n):
                if both(by * block_m + i < m, bx * block_n + j < n):
                    c[by * block_m + i, bx * block_n + j] = T.Cast(dtype, sums[i, j])

    return matmul
