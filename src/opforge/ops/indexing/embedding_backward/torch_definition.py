"""Terms added up in float32, in one order on each device: one after another on a CPU, sorted by row on a GPU."""

import torch
from torch import Tensor


def run(weight: Tensor, indices: Tensor, dy: Tensor, padding_idx: int) -> Tensor:
    vocab, dim = weight.shape
    flat = indices.reshape(-1)
    there = (flat >= 0) & (flat < vocab) & (flat != padding_idx)
    # one row more takes what is not counted
    row = torch.where(there, flat, vocab)
    terms, sums = dy.reshape(-1, dim).float(), dy.new_zeros((vocab + 1, dim), dtype=torch.float32)
    if dy.is_cuda:
        # which PyTorch sorts first; index_add is made of atomic additions there
        sums = sums.index_put((row,), terms, accumulate=True)
    else:
        sums = sums.index_add(0, row, terms)
    return sums[:vocab].to(dy.dtype)
