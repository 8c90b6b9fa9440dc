"""The pipelined product of ../matmul; bias, activation and scale meet the sums in float32, and E4M3 is all that is stored.

moves     x, w and bias once, rows * n bytes of y. Scaling in a pass of its own moves 3 * rows * n bytes more, an activation in one 4 * rows * n
limits    sm_89 and later have the conversion; TMA asks for rows (or columns) that begin at multiples of 16 bytes, any other operand is loaded
          through pointers
"""

from opforge.primitives.triton_gemm import launch_ring
from opforge.primitives.triton_linear import quantized_epilogue

LAYOUTS = ("contiguous", "rows", "strided")
SPACE = {
    "BLOCK_M": (16, 32, 64, 128, 256),
    "BLOCK_N": (32, 64, 128, 256),
    "BLOCK_K_BYTES": (64, 128, 256),
    "GROUP": (1, 4, 8, 16),
    "PERSISTENT": (False, True),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5),
}
LIMITS = {
    "stages_fit_shared_memory": "(BLOCK_M + BLOCK_N) * BLOCK_K_BYTES * num_stages + BLOCK_M * BLOCK_N + 256 <= 232448",
    "sums_fit_registers": "BLOCK_M * BLOCK_N <= 4096 * num_warps",
    "every_warp_has_a_tile": "BLOCK_M * BLOCK_N >= 256 * num_warps",
    "no_block_beyond_the_result": "BLOCK_M <= max(16, 2 * prod(rows)) and BLOCK_N <= max(32, 2 * n)",
}
DEFAULT = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K_BYTES": 128, "GROUP": 8, "PERSISTENT": False, "num_warps": 8, "num_stages": 4}


def launch(x, w, bias, scale, y, *, activation, **config):
    launch_ring(x, w.T, y, quantized_epilogue, (bias, w.shape[0], bias.stride(0), scale), activation, PARTS=1, **config)
