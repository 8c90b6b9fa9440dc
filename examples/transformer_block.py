"""A transformer block on opforge's operators, beside the same block on PyTorch's: forward, backward and torch.compile.

    python examples/transformer_block.py

Every call takes the fastest implementation that has a Pass on this machine, and PyTorch where none has one yet. To have
some: opforge verify rmsnorm softmax silu_mul linear cross_entropy
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from opforge import ops


class OnTorch:
    """The operators of the block as PyTorch has them."""

    linear = staticmethod(F.linear)
    softmax = staticmethod(lambda x: F.softmax(x, dim=-1))
    rmsnorm = staticmethod(lambda x, weight: F.rms_norm(x, weight.shape, weight, eps=1e-6))
    silu_mul = staticmethod(lambda gate, up: F.silu(gate) * up)
    cross_entropy = staticmethod(
        lambda x, target: F.cross_entropy(x.flatten(0, -2), target.flatten(), reduction="none").view(target.shape)
    )


class Block(nn.Module):
    """One decoder layer: RMSNorm, causal attention, RMSNorm, SwiGLU. [batch, length, width] to the same.

    on   where the operators come from: `opforge.ops`, or anything with the same names
    """

    def __init__(self, width: int, heads: int, hidden: int, on: object = ops) -> None:
        super().__init__()
        self.heads, self.on = heads, on
        self.norm_attention, self.norm_mlp = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.up, self.down = nn.Linear(width, hidden), nn.Linear(width, hidden), nn.Linear(hidden, width)

    def project(self, layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        """x @ w^T + bias, with the layer's own parameters."""
        return self.on.linear(x, layer.weight, layer.bias)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """Every head's mixture of the values before each place."""
        batch, length, width = x.shape
        q, k, v = self.project(self.qkv, x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(later, -math.inf)
        return self.project(self.out, (self.on.softmax(scores) @ v).transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.on.rmsnorm(x, self.norm_attention))
        inner = self.on.rmsnorm(x, self.norm_mlp)
        return x + self.project(
            self.down, self.on.silu_mul(self.project(self.gate, inner), self.project(self.up, inner))
        )


class Model(nn.Module):
    """An embedding, one block and a head. Tokens [batch, length] and the ones that follow, to the mean loss."""

    def __init__(self, on: object = ops, *, words: int = 101, width: int = 32) -> None:
        super().__init__()
        self.on = on
        self.embedding, self.block, self.head = (
            nn.Embedding(words, width),
            Block(width, 4, 3 * width, on),
            nn.Linear(width, words),
        )

    def forward(self, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        logits = self.block.project(self.head, self.block(self.embedding(tokens)))
        return self.on.cross_entropy(logits, following).mean()


def twins(**sizes: int) -> tuple[Model, Model]:
    """The model on opforge and on PyTorch, with the same parameters."""
    mine, theirs = Model(ops, **sizes), Model(OnTorch, **sizes)
    theirs.load_state_dict(mine.state_dict())
    return mine, theirs


def furthest(mine: Model, theirs: Model) -> float:
    """The largest difference between gradients, as a share of the largest gradient of that parameter."""
    pairs = zip(mine.parameters(), theirs.parameters(), strict=True)
    return max(float((a.grad - b.grad).abs().max() / b.grad.abs().max().clamp(min=1e-9)) for a, b in pairs)


def main() -> None:
    torch.manual_seed(0)
    mine, theirs = twins()
    tokens, following = torch.randint(101, (2, 2, 17))
    for name, call in (("eager", mine), ("torch.compile", torch.compile(mine, fullgraph=True))):
        mine.zero_grad()
        theirs.zero_grad()
        losses = call(tokens, following), theirs(tokens, following)
        for loss in losses:
            loss.backward()
        print(
            f"{name}: loss {losses[0]:.6f}, PyTorch's {losses[1]:.6f}; gradients differ by "
            f"{furthest(mine, theirs):.1e} of the largest at most"
        )
    print(ops.rmsnorm.why(torch.randn(2, 17, 32), mine.block.norm_mlp))


if __name__ == "__main__":
    main()
