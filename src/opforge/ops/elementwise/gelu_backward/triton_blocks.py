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
def gelu_backward_block(
    x_ptr, dy_ptr, dx_ptr, n, x_stride, dy_stride, dx_stride, TANH: tl.constexpr, BLOCK: tl.constexpr
):
    i, inside = block_of(n, BLOCK)
    x = load_once(x_ptr + i * x_stride, inside)  # [BLOCK], float32
    dy = load_once(dy_ptr + i * dy_stride, inside)  # [BLOCK], float32
    if TANH:  # a constexpr: two kernels, not a branch
        # y = x s(2u) with s the sigmoid, so y' = s (1 + x (1 - s) 2u'), 2u' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
        e = tl.exp2(x * (-2.3022081985 - 0.1029432407 * x * x))
        s = 1 / (1 + e)
        # 1 - s cancels where s is close to 1, and e s would be infinity times 0 at the other end
        rest = tl.where(x > 0, e * s, 1 - s)
        # beyond 20 the sigmoid is 0 or 1, and an infinite u' times its slope would be NaN
        near = tl.minimum(tl.maximum(x, -20.0), 20.0)
        dx = dy * s * (1 + near * rest * (1.5957691216 + 0.2140644488 * near * near))
    else:
        # Phi(x) + x phi(x); the tail as in gelu
        t = 1 / (1 + 0.2316418882 * tl.abs(x))
        e = tl.exp2(x * x * -0.7213475204)
        tail = e * t * (0.127414796 + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))))
        dx = dy * (tl.where(x > 0, 1 - tail, tail) + x * e * 0.3989422804)
    store_once(dx_ptr + i * dx_stride, dx, inside)


def launch(x, dy, dx, *, approximate, BLOCK, num_warps):
    n = x.numel()
    gelu_backward_block[(triton.cdiv(n, BLOCK),)](
        x,
        dy,
        dx,
        n,
        x.stride(0),
        dy.stride(0),
        dx.stride(0),
        TANH=approximate == "tanh",
        BLOCK=BLOCK,
        num_warps=num_warps,
    )
