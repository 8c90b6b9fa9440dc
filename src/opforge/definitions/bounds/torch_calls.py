"""Functions of PyTorch on numbers that carry their rounding errors: a reference that is written with them has its bound
from `formula_errors` as one that is written with operators and methods alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

METHODS = ("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "abs", "sin", "cos", "tanh", "sigmoid", "erf", "erfc",
           "floor", "ceil", "maximum", "minimum", "clamp", "cumsum", "cumprod", "transpose", "squeeze")  # fmt: skip
"""Called the same as methods."""


def _softmax(x: Any, dim: int, **_: Any) -> Any:
    powers = (x - x.amax(dim, True)).exp()
    return powers / powers.sum(dim, True)


def _logsumexp(x: Any, dim: int, keepdim: bool = False) -> Any:
    most = x.amax(dim, True)
    total = (x - most).exp().sum(dim, True).log() + most
    return total if keepdim else total.squeeze(dim)


def _gelu(x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return 0.5 * x * (1.0 + ((x + 0.044715 * (x * x * x)) * math.sqrt(2 / math.pi)).tanh())
    return 0.5 * x * (1.0 + (x * math.sqrt(0.5)).erf())


def _softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    z = x * beta
    return (z.clamp(min=0.0) + (-z.abs()).exp().log1p()) / beta


def _elu(x: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    return (x.clamp(max=0.0).expm1() * alpha).where(x < 0.0, x)


def _one_axis(shape: Sequence[int]) -> None:
    if len(shape) != 1:
        raise NotImplementedError("a norm over more than the last axis: write it with mean and rsqrt")


def _layer_norm(x: Any, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    _one_axis(shape)
    centred = x - x.mean(-1, True)
    y = centred * ((centred * centred).mean(-1, True) + eps).rsqrt()
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _rms_norm(x: Any, shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Any:
    _one_axis(shape)
    y = x * ((x * x).mean(-1, True) + (2.0**-23 if eps is None else eps)).rsqrt()
    return y if weight is None else y * weight


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    y = x @ weight.transpose(-1, -2)
    return y if bias is None else y + bias


def _reduced(name: str) -> Callable[..., Any]:
    def reduce(x: Any, dim: int | Sequence[int], keepdim: bool = False) -> Any:
        (one,) = (dim,) if isinstance(dim, int) else tuple(dim)
        whole = getattr(x, name)(one, True)
        return whole if keepdim else whole.squeeze(one)

    return reduce


FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a / b,
        "true_divide": lambda a, b: a / b,
        "matmul": lambda a, b: a @ b,
        "neg": lambda x: -x,
        "square": lambda x: x * x,
        "reciprocal": lambda x: 1.0 / x,
        "relu": lambda x, **_: x.clamp(min=0.0),
        "silu": lambda x, **_: x * x.sigmoid(),
        "gelu": _gelu,
        "softplus": _softplus,
        "elu": _elu,
        "selu": lambda x, **_: _elu(x, 1.6732632423543772) * 1.0507009873554805,
        "mish": lambda x, **_: x * _softplus(x).tanh(),
        "hardtanh": lambda x, min_val=-1.0, max_val=1.0, **_: x.clamp(min_val, max_val),
        "leaky_relu": lambda x, negative_slope=0.01, **_: (x * negative_slope).where(x < 0.0, x),
        "logsigmoid": lambda x: -_softplus(-x),
        "where": lambda condition, yes, no: (
            yes.where(condition, no) if hasattr(yes, "largest") else no.where(~condition, yes)
        ),
        "softmax": _softmax,
        "log_softmax": lambda x, dim, **_: x - _logsumexp(x, dim, True),
        "logsumexp": _logsumexp,
        "layer_norm": _layer_norm,
        "rms_norm": _rms_norm,
        "linear": _linear,
        **{name: _reduced(name) for name in ("sum", "mean", "amax", "amin")},
    }
)


def called(function: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """What a function of PyTorch gives on such numbers. Raises NotImplementedError for one that is not known."""
    name = getattr(function, "__name__", "")
    if name in METHODS:
        return getattr(arguments[0], name)(*arguments[1:], **options)
    if name not in FUNCTIONS:
        raise NotImplementedError(
            f"formula_errors does not know torch's {name or function}: write the reference with "
            f"{', '.join(sorted({*METHODS, *FUNCTIONS}))}, operators and methods, or give `magnitude` instead"
        )
    return FUNCTIONS[name](*arguments, **options)
