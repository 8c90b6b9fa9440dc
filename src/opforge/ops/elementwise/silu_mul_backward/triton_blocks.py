"""One block of consecutive elements per program, in float32.

moves     5 * elements * itemsize bytes: the least possible
limits    16-byte accesses only where the tensors are contiguous and 16-byte aligned, which Triton finds out by itself
"""

import triton
import triton.language as tl

from opforge.device.triton.blocks import LIMITS as LIMITS, SPACE as SPACE, block_of, load_once, store_once

LAYOUTS = ("contiguous", "strided")
DEFAULT = {"BLOCK": 1024, "num_warps": 4}


@triton.jit
def silu_mul_backward_block(
    gate_ptr,
    up_ptr,
    dy_ptr,
    dgate_ptr,
    dup_ptr,
    n,
    gate_stride,
    up_stride,
    dy_stride,
    dgate_stride,
    dup_stride,
    BLOCK: tl.constexpr,
):
    i, inside = block_of(n, BLOCK)
    gate = load_once(gate_ptr + i * gate_stride, inside)  # [BLOCK], float32
    up = load_once(up_ptr + i * up_stride, inside)  # [BLOCK], float32
    dy = load_once(dy_ptr + i * dy_stride, inside)  # [BLOCK], float32
    e = tl.exp2(gate * -1.4426950408889634)
    s = 1 / (1 + e)
    # 1 - s cancels where s is close to 1, and e s would be infinity times 0 at the other end
    dgate = dy * up * s * (1 + gate * tl.where(gate > 0, e * s, 1 - s))
    dup = dy * gate * s
    store_once(dgate_ptr + i * dgate_stride, dgate, inside)
    store_once(dup_ptr + i * dup_stride, dup, inside)


def launch(gate, up, dy, dgate, dup, *, BLOCK, num_warps):
    n = gate.numel()
    silu_mul_backward_block[(triton.cdiv(n, BLOCK),)](
        gate,
        up,
        dy,
        dgate,
        dup,
        n,
        gate.stride(0),
        up.stride(0),
        dy.stride(0),
        dgate.stride(0),
        dup.stride(0),
        BLOCK=BLOCK,
        num_warps=num_warps,
    )
