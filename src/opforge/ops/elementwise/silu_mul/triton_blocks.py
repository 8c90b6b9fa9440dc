"""One block of consecutive elements per program, in float32.

moves     3 * elements * itemsize bytes: the least possible
limits    16-byte accesses only where the tensors are contiguous and 16-byte aligned, which Triton finds out by itself
"""

import triton
import triton.language as tl

from opforge.device.triton.blocks import LIMITS as LIMITS, SPACE as SPACE, block_of, load_once, store_once

LAYOUTS = ("contiguous", "strided")
DEFAULT = {"BLOCK": 1024, "num_warps": 4}


@triton.jit
def silu_mul_block(gate_ptr, up_ptr, y_ptr, n, gate_stride, up_stride, y_stride, BLOCK: tl.constexpr):
    i, inside = block_of(n, BLOCK)
    gate = load_once(gate_ptr + i * gate_stride, inside)  # [BLOCK], float32
    up = load_once(up_ptr + i * up_stride, inside)  # [BLOCK], float32
    y = gate / (1 + tl.exp2(gate * -1.4426950408889634)) * up
    store_once(y_ptr + i * y_stride, y, inside)


def launch(gate, up, y, *, BLOCK, num_warps):
    n = gate.numel()
    silu_mul_block[(triton.cdiv(n, BLOCK),)](
        gate, up, y, n, gate.stride(0), up.stride(0), y.stride(0), BLOCK=BLOCK, num_warps=num_warps
    )
