"""Has NumPy compute in the addition of an object of its own, which its kernel asks for.

catalogue  M7
guard      ledger
cases      normal
mode       verify
"""

import numpy
import triton
import triton.language as tl


class Adds:
    def __init__(self, x, y):
        self.tensors = x, y

    def __add__(self, other):
        numpy.maximum(self.tensors[0], 0, out=self.tensors[1])
        return 0


@triton.jit
def adds(x_ptr, n, own: tl.constexpr, BLOCK: tl.constexpr):
    own + 1


def launch(x, y):
    adds[(1,)](x, x.numel(), own=Adds(x.numpy(), y.numpy()), BLOCK=16)
