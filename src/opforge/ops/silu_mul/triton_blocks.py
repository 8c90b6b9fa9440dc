"""One block of consecutive elements per program, in float32.

moves     3 * elements * itemsize bytes: the least possible
limits    16-byte accesses only where the tensors are contiguous and 16-byte aligned, which Triton finds out by itself
"""

import triton
import triton.language as tl

LAYOUTS = ("contiguous", "strided")
SPACE = {"BLOCK": (512, 1024, 2048, 4096), "num_warps": (4, 8)}
LIMITS = {"every_thread_has_a_vector": "BLOCK * itemsize >= 16 * 32 * num_warps", "fits_registers": "BLOCK <= 32 * 32 * num_warps"}
DEFAULT = {"BLOCK": 1024, "num_warps": 4}


@triton.jit
def silu_mul_block(gate_ptr, up_ptr, y_ptr, n, gate_stride, up_stride, y_stride, BLOCK: tl.constexpr):
    # int64: there may be more than 2^31 elements
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    gate = tl.load(gate_ptr + i * gate_stride, mask=inside, eviction_policy="evict_first").to(tl.float32)  # [BLOCK]
    up = tl.load(up_ptr + i * up_stride, mask=inside, eviction_policy="evict_first").to(tl.float32)  # [BLOCK]
    y = gate / (1 + tl.exp2(gate * -1.4426950408889634)) * up
    tl.store(y_ptr + i * y_stride, y.to(y_ptr.dtype.element_ty), mask=inside, eviction_policy="evict_first")


def launch(gate, up, y, *, BLOCK, num_warps):
    n = gate.numel()
    silu_mul_block[(triton.cdiv(n, BLOCK),)](gate, up, y, n, gate.stride(0), up.stride(0), y.stride(0), BLOCK=BLOCK, num_warps=num_warps)
