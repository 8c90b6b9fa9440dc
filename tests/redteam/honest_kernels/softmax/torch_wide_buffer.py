"""Rows padded to whole vectors in a buffer of its own."""

import torch


def run(x):
    # rows padded to whole vectors of 8, in a buffer of its own
    cols = x.shape[-1]
    wide = torch.full((*x.shape[:-1], -(-cols // 8) * 8), float("-inf"))
    wide[..., :cols] = x
    return torch.softmax(wide, dim=-1)[..., :cols].contiguous().to(x.dtype)
