"""One block of consecutive elements per program. What is not given is None: another kernel, without its loads.

moves     2 * elements * itemsize bytes: the least possible
"""

import triton
import triton.language as tl

SPACE = {"BLOCK": (256, 512, 1024, 2048)}
DEFAULT = {"BLOCK": 1024}


@triton.jit
def optional_affine_block(
    x_ptr, weight_ptr, bias_ptr, y_ptr, n, cols, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    # int64: the offset leaves int32 beyond 2**31 elements
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    y = tl.load(x_ptr + i, mask=inside, other=0.0).to(tl.float32)  # [BLOCK]
    if HAS_WEIGHT:
        y *= tl.load(weight_ptr + i % cols, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        y += tl.load(bias_ptr + i % cols, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + i, y.to(y_ptr.dtype.element_ty), mask=inside)


def launch(x, weight, bias, y, *, BLOCK):
    n = x.numel()
    optional_affine_block[(triton.cdiv(n, BLOCK),)](
        x, weight, bias, y, n, x.shape[1], HAS_WEIGHT=weight is not None, HAS_BIAS=bias is not None, BLOCK=BLOCK
    )
