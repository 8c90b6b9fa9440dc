"""One token and one head per program, both halves at once.

moves     4 * tokens * heads * half * itemsize bytes of x and y: the least possible; angles come from the cache
limits    half <= 1024 (registers)
"""

import triton
import triton.language as tl

SUPPORTS = {"a_half_fits": "half <= 1024"}


@triton.jit
def rotate(x_ptr, cos_ptr, sin_ptr, y_ptr, width, half, BLOCK: tl.constexpr):
    # int64: the offset leaves int32 beyond 2**31 elements
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, BLOCK)
    inside = i < half
    at = token * width + head * 2 * half + i
    c = tl.load(cos_ptr + token * half + i, mask=inside, other=0.0)  # [BLOCK]
    s = tl.load(sin_ptr + token * half + i, mask=inside, other=0.0)  # [BLOCK]
    a = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)  # [BLOCK]
    b = tl.load(x_ptr + at + half, mask=inside, other=0.0).to(tl.float32)  # [BLOCK]
    tl.store(y_ptr + at, (a * c - b * s).to(y_ptr.dtype.element_ty), mask=inside)
    tl.store(y_ptr + at + half, (b * c + a * s).to(y_ptr.dtype.element_ty), mask=inside)


def launch(x, cos, sin, y):
    (tokens, width), half = x.shape, cos.shape[1]
    rotate[(tokens, width // (2 * half))](x, cos, sin, y, width, half, BLOCK=triton.next_power_of_2(half))
