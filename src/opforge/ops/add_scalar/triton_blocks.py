"""One block of consecutive elements per program, in float32.

moves     2 * elements * itemsize bytes: the least possible
limits    16-byte accesses only where the tensors are contiguous and 16-byte aligned, which Triton finds out by itself
"""

import triton
import triton.language as tl

LAYOUTS = ("contiguous", "strided")
SPACE = {"BLOCK": (512, 1024, 2048, 4096), "num_warps": (4, 8)}
LIMITS = {"every_thread_has_a_vector": "BLOCK * itemsize >= 16 * 32 * num_warps", "fits_registers": "BLOCK <= 32 * 32 * num_warps"}
DEFAULT = {"BLOCK": 1024, "num_warps": 4}


@triton.jit
def add_scalar_block(x_ptr, y_ptr, n, value, x_stride, y_stride, BLOCK: tl.constexpr):
    # int64: there may be more than 2^31 elements
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    x = tl.load(x_ptr + i * x_stride, mask=inside, eviction_policy="evict_first").to(tl.float32)  # [BLOCK]
    y = x + value
    tl.store(y_ptr + i * y_stride, y.to(y_ptr.dtype.element_ty), mask=inside, eviction_policy="evict_first")


def launch(x, y, *, value, BLOCK, num_warps):
    n = x.numel()
    add_scalar_block[(triton.cdiv(n, BLOCK),)](x, y, n, value, x.stride(0), y.stride(0), BLOCK=BLOCK, num_warps=num_warps)
