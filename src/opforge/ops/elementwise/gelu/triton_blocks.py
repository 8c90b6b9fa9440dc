"""One block of consecutive elements per program, in float32; one exp2 and one division an element.

moves     2 * elements * itemsize bytes: the least possible
limits    16-byte accesses only where the tensors are contiguous and 16-byte aligned, which Triton finds out by itself
"""

import triton
import triton.language as tl

from opforge.device.triton.blocks import LIMITS as LIMITS, SPACE as SPACE, block_of, load_once, store_once

LAYOUTS = ("contiguous", "strided")
DEFAULT = {"BLOCK": 1024, "num_warps": 4}


@triton.jit
def gelu_block(x_ptr, y_ptr, n, x_stride, y_stride, TANH: tl.constexpr, BLOCK: tl.constexpr):
    i, inside = block_of(n, BLOCK)
    x = load_once(x_ptr + i * x_stride, inside)  # [BLOCK], float32
    if TANH:  # a constexpr: two kernels, not a branch
        # 2u = 2 sqrt(2/pi) (x + 0.044715 x^3); the factor log2(e) makes exp an exp2
        y = x / (1 + tl.exp2(x * (-2.3022081985 - 0.1029432407 * x * x)))
    else:
        # the tail of the normal distribution: Abramowitz and Stegun 7.1.26 with the argument scaled by 1/sqrt(2)
        t = 1 / (1 + 0.2316418882 * tl.abs(x))
        tail = (
            tl.exp2(x * x * -0.7213475204)
            * t
            * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
        )
        y = x * tl.where(x > 0, 1 - tail, tail)
    store_once(y_ptr + i * y_stride, y, inside)


def launch(x, y, *, approximate, BLOCK, num_warps):
    n = x.numel()
    gelu_block[(triton.cdiv(n, BLOCK),)](
        x, y, n, x.stride(0), y.stride(0), TANH=approximate == "tanh", BLOCK=BLOCK, num_warps=num_warps
    )
