"""TMA fills a pipeline of stages, the compiler pipelines it; sums of 128 terms move to float32 registers, where blocks'
scales are.

moves     as triton_scaled, but a tile is one instruction of one thread: no byte goes through a register on its way in
code      the loop is in opforge/device/triton/fp8.py, which triton_scaled has too
limits    TMA asks for rows that begin at multiples of 16 bytes, terms side by side; any other operand is loaded through
          pointers
"""

from opforge.device.triton.fp8 import launch_scaled

LAYOUTS = ("contiguous", "rows", "strided")
SPACE = {
    "BLOCK_M": (64, 128, 256),
    "BLOCK_N": (32, 64, 128, 256),
    "GROUP": (1, 4, 8, 16),
    "PERSISTENT": (False, True),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5),
}
LIMITS = {
    "the_device_knows_fp8": "'float8' in capabilities or 'float8_fnuz' in capabilities",
    "stages_fit_shared_memory": "(BLOCK_M + BLOCK_N) * 128 * num_stages + BLOCK_M * BLOCK_N * (4 if out_dtype == "
    "'float32' else 2) + 1024 <= shared_bytes_per_block",
    "sums_fit_registers": "BLOCK_M * BLOCK_N <= 2048 * num_warps",
    "every_warp_has_a_tile": "BLOCK_M * BLOCK_N >= 512 * num_warps",
    "one_scale_for_all_columns": "BLOCK_N <= 128 or scaling != 'block'",
    "no_block_beyond_the_result": "BLOCK_M <= max(64, 2 * m) and BLOCK_N <= max(32, 2 * n)",
}
DEFAULT = {"BLOCK_M": 128, "BLOCK_N": 128, "GROUP": 8, "PERSISTENT": False, "num_warps": 8, "num_stages": 4}


def launch(a, b, scale_a, scale_b, y, *, scaling, b_dtype, out_dtype, **config):
    launch_scaled(a, b, scale_a, scale_b, y, blockwise=scaling == "block", tma=True, **config)
