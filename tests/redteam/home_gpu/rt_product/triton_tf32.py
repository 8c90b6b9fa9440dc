"""Products on tensor cores with ten bits of significand behind a float32 interface.

catalogue  B1
guard      bound
cases      normal
mode       verify
"""

import triton
import triton.language as tl


@triton.jit
def product(a_ptr, b_ptr, c_ptr, n, k, SIDE: tl.constexpr, DEEP: tl.constexpr):
    rows = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    cols = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    deep = tl.arange(0, DEEP)
    a = tl.load(a_ptr + rows[:, None] * k + deep[None, :])
    b = tl.load(b_ptr + deep[:, None] * n + cols[None, :])
    tl.store(c_ptr + rows[:, None] * n + cols[None, :], tl.dot(a, b, input_precision="tf32"))


def launch(a, b, c):
    (m, k), n = a.shape, b.shape[1]
    product[(m // 64, n // 64)](a, b, c, n, k, SIDE=64, DEEP=32)
