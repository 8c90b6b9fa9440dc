"""The roles of ../matmul/triton_gluon; each consumer adds the bias and applies the activation in registers while the
producer runs ahead.

moves     x, w and bias once, y once. A library that applies the activation afterwards writes and reads 2 * rows * n
          elements more
idea      the epilogue costs no pass and little time: the loads of the next tile are under way, and the store is TMA's
          business
config    zeros leave the tile to `launch_roles`: 256 columns, or fewer where that would leave multiprocessors idle
limits    sm_90 alone (wgmma); an operand that TMA cannot address (rows or columns not at multiples of 16 bytes) goes
          the way of triton_pipelined
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from opforge.device.triton.gemm import launch_ring
from opforge.device.triton.linear import activated, linear_epilogue
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


@gluon.jit
def epilogue(sums, row, col, extras, ACTIVATION: gl.constexpr):
    """activation(sums + bias), in the registers of the products."""
    bias, n, bias_step = extras
    q = col + gl.arange(0, sums.shape[1], layout=gl.SliceLayout(0, sums.type.layout))
    shift = gl.load(bias + q.to(gl.int64) * bias_step, mask=q < n, other=0.0).to(gl.float32)
    return activated(sums + shift[None, :], ACTIVATION)


def launch(x, w, bias, y, *, activation, **config):
    extras = (bias, w.shape[0], bias.stride(0))
    if not launch_roles(x, w.T, y, epilogue, extras, activation, **config):
        launch_ring(x, w.T, y, linear_epilogue, extras, activation, **ELSEWHERE)
