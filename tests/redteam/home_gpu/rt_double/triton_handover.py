"""Warps of their own write into shared memory what others read: Gluon's partitions, with and without a barrier.

0   the reader waits for what the writer announces: right
1   the reader waits for nothing: a race
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

BLOCK = gl.constexpr(256)

SPACE = {"HANDOVER": [0, 1]}
DEFAULT = {"HANDOVER": 0}


@gluon.jit
def read(y, n, shared, full, HANDOVER: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([2], [32], [4], [0])
    if HANDOVER == 0:
        mbarrier.wait(full, 0)
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    gl.store(y + at, (2.0 * shared.load(layout)).to(gl.float32), mask=at < n)


@gluon.jit
def write(x, n, shared, full):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    shared.store(gl.load(x + at, mask=at < n, other=0.0).to(gl.float64))
    mbarrier.arrive(full, count=1)


@gluon.jit
def twice(x, y, n, HANDOVER: gl.constexpr, num_warps: gl.constexpr):
    shared = gl.allocate_shared_memory(gl.float64, [BLOCK], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    fence_async_shared()
    gl.warp_specialize(
        [(read, (y, n, shared, full, HANDOVER)), (write, (x, n, shared, full))],
        [4],
        [64],
    )


def launch(x, y, *, HANDOVER):
    n = x.numel()
    if n:
        twice[(triton.cdiv(n, BLOCK),)](x, y, n, HANDOVER, num_warps=4)
