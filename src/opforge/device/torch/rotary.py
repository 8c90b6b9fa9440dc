"""Rotary positions in PyTorch, for the files of rotary and of its gradient."""

import math

import torch
from torch import Tensor


def angles(table: Tensor, positions: Tensor | None, tokens: int) -> Tensor:
    """Of each token, [..., tokens, 1, half]; NaN where there is no such place."""
    if positions is None:
        return table[:tokens].unsqueeze(-2)
    known = (positions >= 0) & (positions < table.shape[0])
    picked = table[torch.where(known, positions, 0)]
    return torch.where(known.unsqueeze(-1), picked, math.nan).unsqueeze(-2)


def turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """x [..., heads, dim] with its first 2 * half elements turned; rounded once."""
    half = cos.shape[-1]
    if interleaved:
        a, b = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
    else:
        a, b = x[..., :half], x[..., half : 2 * half]
    # 16-bit elements widen to float32 beside the angles
    first, second = (a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype)
    if interleaved:
        rotated = torch.stack((first, second), dim=-1).flatten(-2)
        return rotated if 2 * half == x.shape[-1] else torch.cat((rotated, x[..., 2 * half :]), dim=-1)
    return torch.cat((first, second) if 2 * half == x.shape[-1] else (first, second, x[..., 2 * half :]), dim=-1)


def rotate(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, interleaved: bool, sign: int
) -> tuple[Tensor, Tensor]:
    c, s = angles(cos, positions, q.shape[-3]), angles(sin, positions, q.shape[-3])
    if sign < 0:
        s = -s
    return turned(q, c, s, interleaved), turned(k, c, s, interleaved)
