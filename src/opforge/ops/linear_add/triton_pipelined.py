"""The pipelined product of ../matmul; bias, activation and residual meet the sums in float32, before they are stored.

moves     x, w and bias once, residual once, y once. A library that does so afterwards moves 2 or 4 * rows * n elements more
limits    TMA asks for rows (or columns) that begin at multiples of 16 bytes; any other operand, and the residual, is loaded through pointers
precision float32 operands are multiplied in float32 ("ieee"); the activation is computed on sums that were never rounded
"""

from opforge.primitives.triton_gemm import launch_ring
from opforge.primitives.triton_linear import residual_epilogue

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
    "stages_fit_shared_memory": "(BLOCK_M + BLOCK_N) * BLOCK_K_BYTES * num_stages + BLOCK_M * BLOCK_N * itemsize + 256 <= 232448",
    "sums_fit_registers": "BLOCK_M * BLOCK_N <= 4096 * num_warps",
    "every_warp_has_a_tile": "BLOCK_M * BLOCK_N >= 256 * num_warps",
    "no_block_beyond_the_result": "BLOCK_M <= max(16, 2 * prod(rows)) and BLOCK_N <= max(32, 2 * n)",
}
DEFAULT = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K_BYTES": 128, "GROUP": 8, "PERSISTENT": False, "num_warps": 8, "num_stages": 4}


def launch(x, w, bias, residual, y, *, activation, **config):
    extras = (bias, w.shape[0], bias.stride(0), residual, x.shape[0], *residual.stride())
    launch_ring(x, w.T, y, residual_epilogue, extras, activation, PARTS=1, **config)
