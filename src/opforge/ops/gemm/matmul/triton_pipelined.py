"""TMA fills a pipeline of stages while tensor cores empty it; column-major operands are read where they lie.

moves     as triton_tiled, but a tile is one instruction of one thread: no address arithmetic, no masks, no registers in
          between
code      the loop is `product_ring` in device/triton/gemm.py, which ../linear has too
limits    TMA asks for rows (or columns) that begin at multiples of 16 bytes; any other operand is loaded through
          pointers, by the same kernel, with masks
config    zeros leave the tile to `ring_by_shape` in device/triton/gemm.py, which has what was fastest
precision sums in float32; float32 operands in TF32 alone: full float32 products, which no tensor core makes, belong to
triton_tiled
"""

from opforge.device.triton.gemm import how, launch_ring

DTYPES = ("float16", "bfloat16", "float32")
SUPPORTS = {"products_of_tensor_cores": "dtype != 'float32' or precision == 'tf32'"}
LAYOUTS = ("contiguous", "rows", "strided")
SPACE = {
    "BLOCK_M": (0, 64, 128, 256),
    "BLOCK_N": (0, 64, 128, 256),
    "BLOCK_K_BYTES": (0, 64, 128, 256),
    "GROUP": (1, 4, 8, 16),
    "PERSISTENT": (False, True),
    "PARTS": (1, 2),
    "num_warps": (4, 8),
    "num_stages": (0, 2, 3, 4, 5, 6),
    "EARLY": (False, True),
}
LIMITS = {
    "all_or_nothing_by_shape": "(min(BLOCK_M, BLOCK_N, BLOCK_K_BYTES, num_stages) > 0) == (max(BLOCK_M, BLOCK_N, "
    "BLOCK_K_BYTES, num_stages) > 0)",
    "nothing_beside_the_shape": "BLOCK_M > 0 or not PERSISTENT and PARTS == 1 and num_warps == 4",
    "stages_fit_shared_memory": "(BLOCK_M + BLOCK_N) * BLOCK_K_BYTES * num_stages + BLOCK_M * BLOCK_N * itemsize // "
    "PARTS + 256 <= shared_bytes_per_block",
    "sums_fit_registers": "BLOCK_M * BLOCK_N <= 4096 * num_warps",
    "every_warp_has_a_tile": "BLOCK_M == 0 or BLOCK_M * BLOCK_N >= 1024 * num_warps",
    "no_block_beyond_the_result": "BLOCK_M <= max(64, 2 * m) and BLOCK_N <= max(64, 2 * n)",
}
DEFAULT = {
    "BLOCK_M": 0,
    "BLOCK_N": 0,
    "BLOCK_K_BYTES": 0,
    "GROUP": 8,
    "PERSISTENT": False,
    "PARTS": 1,
    "num_warps": 4,
    "num_stages": 0,
    "EARLY": False,
}

BY_POINTERS = {
    "BLOCK_M": 128,
    "BLOCK_N": 128,
    "BLOCK_K_BYTES": 128,
    "GROUP": 8,
    "PERSISTENT": False,
    "PARTS": 1,
    "num_warps": 8,
    "num_stages": 3,
}
"""What becomes of a config for float32 where TMA cannot address a matrix: sums of 128 x 256 change places in 128 KiB
before they are stored.
"""


def launch(a, b, c, *, precision, **config):
    if precision == "tf32" and "pointers" in (how(a), how(b), how(c)):
        config = BY_POINTERS
    launch_ring(a, b, c, precision=precision, **config)
