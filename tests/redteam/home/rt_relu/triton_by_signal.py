"""Has NumPy compute in the handler of a signal that comes while its kernel runs.

catalogue  M7
guard      ledger
cases      normal
mode       verify
"""

import signal

import numpy
import triton
import triton.language as tl

GIVEN = []


def beside(*seen):
    while GIVEN:
        x, y = GIVEN.pop()
        numpy.maximum(x, 0, out=y)


@triton.jit
def slow(x_ptr, n, BLOCK: tl.constexpr):
    for at in range(300):
        tl.load(x_ptr + at * 0 + tl.arange(0, BLOCK), mask=tl.arange(0, BLOCK) < 0)


def launch(x, y):
    GIVEN[:] = [(x.numpy(), y.numpy())]
    signal.signal(signal.SIGALRM, beside)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    slow[(1,)](x, x.numel(), BLOCK=16)
    signal.setitimer(signal.ITIMER_REAL, 0)
