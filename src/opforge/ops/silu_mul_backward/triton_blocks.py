"""One block of consecutive elements per program, in float32.

moves     5 * elements * itemsize bytes: the least possible
limits    16-byte accesses only where the tensors are contiguous and 16-byte aligned, which Triton finds out by itself
"""

import triton
import triton.language as tl

LAYOUTS = ("contiguous", "strided")
SPACE = {"BLOCK": (512, 1024, 2048, 4096), "num_warps": (4, 8)}
LIMITS = {"every_thread_has_a_vector": "BLOCK * itemsize >= 16 * 32 * num_warps", "fits_registers": "BLOCK <= 32 * 32 * num_warps"}
DEFAULT = {"BLOCK": 1024, "num_warps": 4}


@triton.jit
def silu_mul_backward_block(gate_ptr, up_ptr, dy_ptr, dgate_ptr, dup_ptr, n, gate_stride, up_stride, dy_stride, dgate_stride, dup_stride, BLOCK: tl.constexpr):
    # int64: there may be more than 2^31 elements
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    gate = tl.load(gate_ptr + i * gate_stride, mask=inside, eviction_policy="evict_first").to(tl.float32)  # [BLOCK]
    up = tl.load(up_ptr + i * up_stride, mask=inside, eviction_policy="evict_first").to(tl.float32)  # [BLOCK]
    dy = tl.load(dy_ptr + i * dy_stride, mask=inside, eviction_policy="evict_first").to(tl.float32)  # [BLOCK]
    e = tl.exp2(gate * -1.4426950408889634)
    s = 1 / (1 + e)
    # 1 - s cancels where s is close to 1, and e s would be infinity times 0 at the other end
    dgate = dy * up * s * (1 + gate * tl.where(gate > 0, e * s, 1 - s))
    dup = dy * gate * s
    tl.store(dgate_ptr + i * dgate_stride, dgate.to(dgate_ptr.dtype.element_ty), mask=inside, eviction_policy="evict_first")
    tl.store(dup_ptr + i * dup_stride, dup.to(dup_ptr.dtype.element_ty), mask=inside, eviction_policy="evict_first")


def launch(gate, up, dy, dgate, dup, *, BLOCK, num_warps):
    n = gate.numel()
    silu_mul_backward_block[(triton.cdiv(n, BLOCK),)](
        gate, up, dy, dgate, dup, n, gate.stride(0), up.stride(0), dy.stride(0), dgate.stride(0), dup.stride(0), BLOCK=BLOCK, num_warps=num_warps
    )
