"""One token and one head per program. A style is where the pairs' two elements stand.

moves     4 * tokens * heads * half * itemsize bytes of x and y: the least possible; angles come from the cache
limits    half <= 1024 (registers); interleaved pairs are read with a stride of two, which the cache line pays for
"""

import triton
import triton.language as tl

SUPPORTS = {"a_half_fits": "half <= 1024"}


@triton.jit
def rotate(x_ptr, cos_ptr, sin_ptr, y_ptr, heads, half, step, apart, BLOCK: tl.constexpr):
    # int64: the offset leaves int32 beyond 2**31 elements
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, BLOCK)
    inside = i < half
    first = (token * heads + head) * 2 * half + i * step  # [BLOCK]
    c = tl.load(cos_ptr + token * half + i, mask=inside, other=0.0)  # [BLOCK]
    s = tl.load(sin_ptr + token * half + i, mask=inside, other=0.0)  # [BLOCK]
    a = tl.load(x_ptr + first, mask=inside, other=0.0).to(tl.float32)  # [BLOCK]
    b = tl.load(x_ptr + first + apart, mask=inside, other=0.0).to(tl.float32)  # [BLOCK]
    tl.store(y_ptr + first, (a * c - b * s).to(y_ptr.dtype.element_ty), mask=inside)
    tl.store(y_ptr + first + apart, (b * c + a * s).to(y_ptr.dtype.element_ty), mask=inside)


def launch(x, cos, sin, y, *, style):
    (tokens, heads), half = x.shape[:2], cos.shape[1]
    step, apart = (1, half) if style == "halves" else (2, 1)
    if x.numel():
        rotate[(tokens, heads)](x, cos, sin, y, heads, half, step, apart, BLOCK=triton.next_power_of_2(half))
