"""One block of consecutive elements per program, in float32.

idea      0.5 x (1 + tanh u) is x / (1 + exp(-2u)): one exp in place of a tanh, and no sum that cancels
moves     2 * elements * itemsize bytes: the least possible
limits    in 16-bit dtypes the arithmetic of erf is close to the memory's time
"""

import triton
import triton.language as tl

LAYOUTS = ("contiguous", "strided")
SPACE = {"BLOCK": (512, 1024, 2048, 4096), "num_warps": (4, 8)}
LIMITS = {"every_thread_has_a_vector": "BLOCK * itemsize >= 16 * 32 * num_warps", "fits_registers": "BLOCK <= 32 * 32 * num_warps"}
DEFAULT = {"BLOCK": 2048, "num_warps": 4}


@triton.jit
def gelu_block(x_ptr, y_ptr, n, x_stride, y_stride, TANH: tl.constexpr, BLOCK: tl.constexpr):
    # int64: there may be more than 2^31 elements
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    x = tl.load(x_ptr + i * x_stride, mask=inside).to(tl.float32)  # [BLOCK]
    if TANH:  # a constexpr: two kernels, not a branch
        # 2u = 2 sqrt(2/pi) (x + 0.044715 x^3)
        y = x / (1 + tl.exp(-x * (1.5957691216057308 + 0.07135481282645612 * x * x)))
    else:
        y = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    tl.store(y_ptr + i * y_stride, y.to(y_ptr.dtype.element_ty), mask=inside)


def launch(x, y, *, approximate, BLOCK, num_warps):
    n = x.numel()
    gelu_block[(triton.cdiv(n, BLOCK),)](x, y, n, x.stride(0), y.stride(0), TANH=approximate == "tanh", BLOCK=BLOCK, num_warps=num_warps)
