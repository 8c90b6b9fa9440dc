"""Gluon: one warp feeds TMA, two warpgroups multiply with wgmma, and a tile's store runs under the products of the next
one.

moves     as triton_pipelined
code      the roles are in device/triton/roles.py, which ../linear has too
idea      the roles that Triton's compiler cannot give: a producer warp with 24 registers, two consumers with 240 each
          that share the tile of b and own 64 rows of a, full and free barriers for each stage, persistent programs in
          groups that share panels
config    zeros leave the tile to `launch_roles`: 256 columns, or fewer where that would leave multiprocessors idle
limits    sm_90 alone (wgmma); an operand that TMA cannot address (rows or columns not at multiples of 16 bytes) goes
          the way of triton_pipelined
"""

from opforge.device.triton.gemm import launch_ring
from opforge.device.triton.roles import launch_roles

ARCH = "sm_90a"
DTYPES = ("float16", "bfloat16")
LAYOUTS = ("contiguous", "rows", "strided")
SPACE = {
    "BLOCK_N": (0, 64, 128, 256),
    "ROWS": (64, 128),
    "STAGES": (0, 3, 4, 5, 6),
    "PARTS": (0, 1, 2, 4),
    "GROUP": (4, 8, 16),
    "EARLY": (False, True),
}
LIMITS = {
    "all_or_nothing_by_shape": "(min(BLOCK_N, STAGES, PARTS) > 0) == (max(BLOCK_N, STAGES, PARTS) > 0)",
    "nothing_beside_the_shape": "BLOCK_N > 0 or ROWS == 64",
    "stages_fit_shared_memory": "(2 * ROWS + BLOCK_N) * 128 * STAGES + 4 * ROWS * BLOCK_N // max(1, PARTS) + 1024 <= "
    "shared_bytes_per_block",
    "sums_fit_registers": "ROWS * BLOCK_N <= 64 * 256",
}
DEFAULT = {"BLOCK_N": 0, "ROWS": 64, "STAGES": 0, "PARTS": 0, "GROUP": 8, "EARLY": False}
ELSEWHERE = {
    "BLOCK_M": 128,
    "BLOCK_N": 128,
    "BLOCK_K_BYTES": 128,
    "GROUP": 8,
    "PERSISTENT": False,
    "PARTS": 1,
    "num_warps": 8,
    "num_stages": 3,
}


def launch(a, b, c, *, precision, **config):
    if not launch_roles(a, b, c, **config):
        launch_ring(a, b, c, **ELSEWHERE)
