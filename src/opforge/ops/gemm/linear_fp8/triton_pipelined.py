"""The pipelined product of ../matmul; bias, activation and scale meet the sums in float32, and E4M3 is all that is
stored.

moves     x, w and bias once, rows * n bytes of y. Scaling in a pass of its own moves 3 * rows * n bytes more, an
          activation in one 4 * rows * n
limits    sm_89 and later have the conversion; TMA asks for rows (or columns) that begin at multiples of 16 bytes, any
          other operand is loaded through pointers
config    zeros leave the tile to `ring_by_shape` in device/triton/gemm.py, which has what was fastest
"""

from opforge.device.triton.gemm import launch_ring
from opforge.device.triton.linear import quantized_epilogue

LAYOUTS = ("contiguous", "rows", "strided")
SPACE = {
    "BLOCK_M": (0, 16, 32, 64, 128, 256),
    "BLOCK_N": (0, 32, 64, 128, 256),
    "BLOCK_K_BYTES": (0, 64, 128, 256),
    "GROUP": (1, 4, 8, 16),
    "PERSISTENT": (False, True),
    "PARTS": (1, 2),
    "num_warps": (4, 8),
    "num_stages": (0, 2, 3, 4, 5, 6),
    "EARLY": (False, True),
}
LIMITS = {
    "the_device_knows_fp8": "'float8' in capabilities or 'float8_fnuz' in capabilities",
    "all_or_nothing_by_shape": "(min(BLOCK_M, BLOCK_N, BLOCK_K_BYTES, num_stages) > 0) == (max(BLOCK_M, BLOCK_N, "
    "BLOCK_K_BYTES, num_stages) > 0)",
    "nothing_beside_the_shape": "BLOCK_M > 0 or not PERSISTENT and PARTS == 1 and num_warps == 4",
    "parts_of_whole_boxes": "PARTS == 1 or BLOCK_N >= 128",
    "stages_fit_shared_memory": "(BLOCK_M + BLOCK_N) * BLOCK_K_BYTES * num_stages + BLOCK_M * BLOCK_N // PARTS + 256 "
    "<= shared_bytes_per_block",
    "sums_fit_registers": "BLOCK_M * BLOCK_N <= 4096 * num_warps",
    "every_warp_has_a_tile": "BLOCK_M == 0 or BLOCK_M * BLOCK_N >= 256 * num_warps",
    "no_block_beyond_the_result": "BLOCK_M <= max(16, 2 * prod(rows)) and BLOCK_N <= max(32, 2 * n)",
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


def launch(x, w, bias, scale, y, *, activation, **config):
    launch_ring(x, w.T, y, quantized_epilogue, (bias, w.shape[0], bias.stride(0), scale), activation, **config)
