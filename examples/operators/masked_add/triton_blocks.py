"""One block of consecutive elements per program, in the tensor's own format; 16-bit floats are added in float32.

moves     3 * elements * itemsize + elements bytes: the least possible
"""

import triton
import triton.language as tl

SPACE = {"BLOCK": (256, 512, 1024, 2048)}
DEFAULT = {"BLOCK": 1024}


@triton.jit
def masked_add_block(x_ptr, bias_ptr, mask_ptr, y_ptr, n, cols, NARROW: tl.constexpr, BLOCK: tl.constexpr):
    # int64: the offset leaves int32 beyond 2**31 elements
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    x = tl.load(x_ptr + i, mask=inside, other=0)  # [BLOCK]
    bias = tl.load(bias_ptr + i % cols, mask=inside, other=0)  # [BLOCK]
    chosen = tl.load(mask_ptr + i, mask=inside, other=0) != 0  # [BLOCK]
    added = (
        (x.to(tl.float32) + bias.to(tl.float32)).to(x.dtype) if NARROW else x + bias
    )  # NARROW is known at compilation
    tl.store(y_ptr + i, tl.where(chosen, added, x), mask=inside)


def launch(x, bias, mask, y, *, BLOCK):
    n = x.numel()
    narrow = x.dtype.is_floating_point and x.element_size() < 4
    masked_add_block[(triton.cdiv(n, BLOCK),)](x, bias, mask, y, n, x.shape[1], NARROW=narrow, BLOCK=BLOCK)
