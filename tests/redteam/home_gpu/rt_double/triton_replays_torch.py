"""Replays a graph of PyTorch's kernel that a thread captured, beside a kernel of its own that does nothing.

catalogue  E7
guard      device_names
cases      normal
mode       verify
"""

import threading

import torch
import triton
import triton.language as tl


@triton.jit
def nothing(y_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y_ptr + i, 0.0, mask=i < 0)


GRAPHS = {}


def capture(x, y, key):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.mul(x, 2, out=y)
    GRAPHS[key] = graph


def launch(x, y):
    nothing[(1,)](y, BLOCK=32)
    key = x.data_ptr(), y.data_ptr(), x.shape
    if key not in GRAPHS:
        work = threading.Thread(target=capture, args=(x, y, key))
        work.start()
        work.join()
    GRAPHS[key].replay()
