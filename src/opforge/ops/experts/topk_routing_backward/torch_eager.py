"""Weights made again, the mean of what arrived by them, and the result scattered to the experts that were chosen."""

import torch
from torch import Tensor

from opforge.device.torch.routing import weights_of


def run(logits: Tensor, chosen: Tensor, dweights: Tensor, k: int, score: str, normalise: bool) -> Tensor:
    wide = logits.float()
    own = weights_of(wide, chosen, score, normalise)
    if score == "sigmoid":
        given = dweights
        if normalise:
            given = dweights - (own * dweights).sum(dim=-1, keepdim=True)
        picked = own * torch.sigmoid(-wide.gather(-1, chosen)) * given
        return torch.zeros_like(wide).scatter(-1, chosen, picked).to(logits.dtype)
    level = (own * dweights).sum(dim=-1, keepdim=True)
    rest = torch.zeros_like(wide) if normalise else torch.softmax(wide, dim=-1) * -level
    return rest.scatter(-1, chosen, own * (dweights - level)).to(logits.dtype)
