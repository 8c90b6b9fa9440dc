"""Its kernel calls a function of the same file that has NumPy compute.

catalogue  M7
guard      ledger
cases      normal
mode       verify
"""

import numpy
import triton
import triton.language as tl

GIVEN = []


def helper():
    for x, y in GIVEN:
        numpy.maximum(x, 0, out=y)


@triton.jit
def nothing(x_ptr, n, BLOCK: tl.constexpr):
    helper()


def launch(x, y):
    GIVEN[:] = [(x.numpy(), y.numpy())]
    nothing[(1,)](x, x.numel(), BLOCK=16)
