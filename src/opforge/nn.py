"""Modules in the place of torch.nn's: the same constructors, parameters and state_dict, on opforge's operators.

    from opforge import nn

    norm = nn.RMSNorm(4096, eps=1e-5, dtype=torch.bfloat16)
    norm.load_state_dict(theirs.state_dict())

Each is a subclass of torch.nn's module of that name and overrides `forward` alone, so what asks for the type
(initialisation, wrapping policies, quantisation) finds what it knows. What opforge.ops.functional leaves to PyTorch is
computed by PyTorch here too: `functional.NAME.why(...)` says what and why.
"""

from __future__ import annotations

from typing import Any

import torch

from opforge import ops
from opforge.ops import functional


class Linear(torch.nn.Linear):
    """torch.nn.Linear on the operators linear and matmul; with gradients wanted it is PyTorch's."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """x @ weight.T + bias."""
        result: torch.Tensor = functional.linear(input, self.weight, self.bias)
        return result


class Conv2d(torch.nn.Conv2d):
    """torch.nn.Conv2d on the operator conv2d; with padding that is not zeros it is PyTorch's."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The convolution of a batch of images."""
        if self.padding_mode != "zeros":
            return super().forward(input)
        result: torch.Tensor = functional.conv2d(
            input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )
        return result


class Conv1d(torch.nn.Conv1d):
    """torch.nn.Conv1d on the operator conv2d; with padding that is not zeros it is PyTorch's."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The convolution along the last axis."""
        if self.padding_mode != "zeros":
            return super().forward(input)
        result: torch.Tensor = functional.conv1d(
            input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )
        return result


class RMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm on the operator rmsnorm."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """RMS norm over the last axes."""
        result: torch.Tensor = functional.rms_norm(x, self.normalized_shape, self.weight, self.eps)
        return result


class LayerNorm(torch.nn.LayerNorm):
    """torch.nn.LayerNorm on the operator layernorm."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Layer norm over the last axes."""
        result: torch.Tensor = functional.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
        return result


class GroupNorm(torch.nn.GroupNorm):
    """torch.nn.GroupNorm on the operator group_norm; over channels last, or without parameters, it is PyTorch's."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Group norm over channels and positions."""
        result: torch.Tensor = functional.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)
        return result


class Embedding(torch.nn.Embedding):
    """torch.nn.Embedding on the operator embedding; with max_norm, scale_grad_by_freq or sparse it is PyTorch's."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """A row of the table for each index."""
        result: torch.Tensor = functional.embedding(
            input,
            self.weight,
            self.padding_idx,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.sparse,
        )
        return result


class Softmax(torch.nn.Softmax):
    """torch.nn.Softmax on the operator softmax."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Softmax along `dim`."""
        result: torch.Tensor = functional.softmax(input, self.dim, _stacklevel=5)
        return result


class LogSoftmax(torch.nn.LogSoftmax):
    """torch.nn.LogSoftmax on the operator log_softmax."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Logarithm of softmax along `dim`."""
        result: torch.Tensor = functional.log_softmax(input, self.dim, _stacklevel=5)
        return result


class GELU(torch.nn.GELU):
    """torch.nn.GELU on the operator gelu."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """GELU, element by element."""
        result: torch.Tensor = functional.gelu(input, approximate=self.approximate)
        return result


class SiLU(torch.nn.SiLU):
    """torch.nn.SiLU on the operator silu; with gradients wanted it is PyTorch's."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """SiLU, element by element."""
        result: torch.Tensor = functional.silu(input, inplace=self.inplace)
        return result


class ReLU(torch.nn.ReLU):
    """torch.nn.ReLU on the operator relu; with gradients wanted it is PyTorch's."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """ReLU, element by element."""
        result: torch.Tensor = functional.relu(input, inplace=self.inplace)
        return result


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """torch.nn.CrossEntropyLoss on the operator cross_entropy."""

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss of scores for targets."""
        result: torch.Tensor = functional.cross_entropy(
            input,
            target,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )
        return result


class SwiGLU(torch.nn.Module):
    """The feed-forward layer of Llama and its kin: down_proj(silu(gate_proj(x)) * up_proj(x)), on the operators linear,
    matmul and silu_mul. Its parameters have the names that such models' checkpoints have.

    hidden_size, intermediate_size   widths outside and inside
    bias                             whether the three projections have one
    """

    def __init__(
        self, hidden_size: int, intermediate_size: int, bias: bool = False, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.hidden_size, self.intermediate_size = hidden_size, intermediate_size
        self.gate_proj = Linear(hidden_size, intermediate_size, bias=bias, device=device, dtype=dtype)
        self.up_proj = Linear(hidden_size, intermediate_size, bias=bias, device=device, dtype=dtype)
        self.down_proj = Linear(intermediate_size, hidden_size, bias=bias, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """The three projections as Linear begins them."""
        for projection in (self.gate_proj, self.up_proj, self.down_proj):
            projection.reset_parameters()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (…, hidden_size); returns the same shape."""
        result: torch.Tensor = self.down_proj(functional.swiglu(self.gate_proj(x), self.up_proj(x)))
        return result


class RotaryEmbedding(torch.nn.Module):
    """Rotary positions of queries and keys, on the operator rotary, without parameters or entries in a state_dict.

    dim            elements of each head that are turned, an even number; the others are left as they are
    max_positions  places that there are angles of
    base           angle i of place p is p * base ** (-2 i / dim)
    interleaved    whether a pair is two neighbours (GPT-J); otherwise half of `dim` lies between them (Llama)

    The tables stay float32 whatever the module is converted to, and are made in float64.
    """

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(
        self, dim: int, max_positions: int, base: float = 10000.0, interleaved: bool = False, device: Any = None
    ) -> None:
        super().__init__()
        if dim <= 0 or dim % 2:
            raise ValueError(f"dim is {dim}: pairs of elements are turned. Give an even number.")
        self.dim, self.max_positions, self.base, self.interleaved = dim, max_positions, base, interleaved
        for name in ("cos", "sin"):
            table = torch.empty(max_positions, dim // 2, dtype=torch.float32, device=device)
            self.register_buffer(name, table, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The tables anew, where they lie: after `to_empty`, or where `base` was changed."""
        device = self.cos.device
        if device.type == "meta":
            return
        places = torch.arange(self.max_positions, dtype=torch.float64)
        speeds = self.base ** (-torch.arange(0, self.dim, 2, dtype=torch.float64) / self.dim)
        angles = torch.outer(places, speeds)
        self.cos, self.sin = (table.to(device, torch.float32) for table in (angles.cos(), angles.sin()))

    def _apply(self, fn: Any, recurse: bool = True) -> RotaryEmbedding:
        super()._apply(fn, recurse)
        if self.cos.dtype != torch.float32:
            # a conversion of the module's dtype would have rounded them
            self.cos, self.sin = self.cos.float(), self.sin.float()
            self.reset_parameters()
        return self

    def extra_repr(self) -> str:
        """The arguments it was made with."""
        return f"{self.dim}, {self.max_positions}, base={self.base}, interleaved={self.interleaved}"

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """q: (…, tokens, heads, head_dim), k: (…, tokens, key heads, head_dim), positions: (…, tokens). Both turned."""
        result: tuple[torch.Tensor, torch.Tensor] = ops.rotary(
            q, k, self.cos, self.sin, positions, interleaved=self.interleaved
        )
        return result
