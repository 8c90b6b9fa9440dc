"""Any size, stride and scaling: FP8 products of 128 terms on the tensor cores, then their sum is carried on in float32.

moves     a is read cdiv(n, BLOCK_N) times and b cdiv(m, BLOCK_M) times, mostly from the second-level cache
code      the loop is in opforge/device/triton/fp8.py, which triton_pipelined has too
limits    loads through pointers, behind masks; rows of 16 bytes belong to triton_pipelined, triton_gluon and cuda_wgmma
"""

from opforge.device.triton.fp8 import launch_scaled

LAYOUTS = ("contiguous", "rows", "strided")
SPACE = {
    "BLOCK_M": (16, 32, 64, 128),
    "BLOCK_N": (32, 64, 128),
    "GROUP": (1, 8),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4),
}
LIMITS = {
    "the_device_knows_fp8": "'float8' in capabilities or 'float8_fnuz' in capabilities",
    "sums_fit_registers": "BLOCK_M * BLOCK_N <= 2048 * num_warps",
    "every_warp_has_a_tile": "BLOCK_M * BLOCK_N >= 256 * num_warps",
    "no_block_beyond_the_result": "BLOCK_M <= max(16, 2 * m) and BLOCK_N <= max(32, 2 * n)",
}
DEFAULT = {"BLOCK_M": 128, "BLOCK_N": 128, "GROUP": 8, "num_warps": 8, "num_stages": 3}


def launch(a, b, scale_a, scale_b, y, *, scaling, b_dtype, out_dtype, **config):
    launch_scaled(a, b, scale_a, scale_b, y, blockwise=scaling == "block", tma=False, PERSISTENT=False, **config)
