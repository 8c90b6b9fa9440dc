"""A scratch buffer of its own, kept between calls and never handed out."""

import torch

KEPT = {}


def run(a, b, precision):
    # the buffer is scratch: it is written before it is read, and never handed out
    buffer = KEPT.setdefault((a.shape[0], b.shape[1]), torch.empty(a.shape[0], b.shape[1]))
    torch.mm(a.float(), b.float(), out=buffer)
    return buffer.to(a.dtype, copy=True)
