"""Weights of chosen experts in PyTorch, for the files of topk_routing and of its gradient."""

import torch
from torch import Tensor


def weights_of(logits: Tensor, chosen: Tensor, score: str, normalise: bool) -> Tensor:
    """In float32, from float32 logits; see opforge/experts/routing.h for sigmoids that vanish."""
    picked = logits.gather(-1, chosen)
    if score == "softmax":
        return torch.softmax(picked, dim=-1) if normalise else torch.softmax(logits, dim=-1).gather(-1, chosen)
    if not normalise:
        return torch.sigmoid(picked)
    top = picked.amax(dim=-1, keepdim=True).clamp(max=0)
    size = (picked.clamp(max=0) - top).exp() / (1 + (-picked.abs()).exp())
    return size / size.sum(dim=-1, keepdim=True)
