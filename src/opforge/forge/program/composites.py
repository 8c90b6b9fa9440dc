"""Functions of the formula language that are written out in primitives: PyTorch's activations and their kin.

Each stands as PyTorch's documentation has it, with the same defaults, and loses nothing near zero: exp(x) - 1 is expm1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

COMPOSITES: dict[str, tuple[int, int]] = {
    **dict.fromkeys(
        (
            "silu", "gelu", "gelu_tanh", "relu", "relu6", "square", "reciprocal", "selu", "mish", "hardsigmoid",
            "hardswish", "logsigmoid", "tanhshrink", "softsign", "exp2", "log2", "log10", "sinh", "cosh", "tan",
            "trunc", "frac",
        ),
        (1, 1),
    ),
    **dict.fromkeys(("softplus", "elu", "celu", "leaky_relu", "hardshrink", "softshrink"), (1, 2)),
    **dict.fromkeys(("maximum", "minimum"), (2, 2)),
    "hardtanh": (1, 3),
    **dict.fromkeys(("clamp", "where", "threshold"), (3, 3)),
}  # fmt: skip
"""The least and the greatest number of arguments; what is left out has PyTorch's default."""

_DEFAULTS = {
    "softplus": (1.0,), "elu": (1.0,), "celu": (1.0,), "leaky_relu": (0.01,), "hardshrink": (0.5,),
    "softshrink": (0.5,), "hardtanh": (-1.0, 1.0),
}  # fmt: skip
SELU_SCALE, SELU_ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717

Op = Callable[..., int]
Const = Callable[[float], int]


def written_out(name: str, op: Op, const: Const, arguments: tuple[int, ...]) -> int:
    """A composite function in primitives."""
    defaults = _DEFAULTS.get(name, ())
    missing = defaults[len(arguments) - 1 :] if defaults else ()
    given = (*arguments, *map(const, missing))
    written = _WRITTEN.get(name)
    return op(name, *given) if written is None else written(op, const, *given)


def softplus(op: Op, const: Const, x: int) -> int:
    """log(1 + exp(x)): the exponential is of -|x|, so nothing overflows and nothing is lost."""
    size = op("exp", op("neg", op("abs", x)))
    return op("add", op("maximum", x, const(0.0)), op("log1p", size))


def _softplus(op: Op, const: Const, x: int, beta: int) -> int:
    if beta == const(1.0):
        return softplus(op, const, x)
    return op("div", softplus(op, const, op("mul", x, beta)), beta)


def _logsigmoid(op: Op, const: Const, x: int) -> int:
    size = op("exp", op("neg", op("abs", x)))
    return op("sub", op("minimum", x, const(0.0)), op("log1p", size))


def _elu(op: Op, const: Const, x: int, alpha: int) -> int:
    grown = op("expm1", op("minimum", x, const(0.0)))
    grown = grown if alpha == const(1.0) else op("mul", alpha, grown)
    return op("where", op("lt", x, const(0.0)), grown, x)


def _celu(op: Op, const: Const, x: int, alpha: int) -> int:
    grown = op("mul", alpha, op("expm1", op("div", op("minimum", x, const(0.0)), alpha)))
    return op("where", op("lt", x, const(0.0)), grown, x)


def _gelu(op: Op, const: Const, x: int) -> int:
    erf = op("erf", op("mul", x, const(math.sqrt(0.5))))
    return op("mul", op("mul", const(0.5), x), op("add", const(1.0), erf))


def _gelu_tanh(op: Op, const: Const, x: int) -> int:
    cube = op("mul", op("mul", x, x), x)
    inner = op("mul", const(math.sqrt(2 / math.pi)), op("add", x, op("mul", const(0.044715), cube)))
    return op("mul", op("mul", const(0.5), x), op("add", const(1.0), op("tanh", inner)))


def _between(op: Op, const: Const, x: int, low: float, high: float) -> int:
    return op("minimum", op("maximum", x, const(low)), const(high))


def _hardsigmoid(op: Op, const: Const, x: int) -> int:
    return _between(op, const, op("add", op("div", x, const(6.0)), const(0.5)), 0.0, 1.0)


def _hardswish(op: Op, const: Const, x: int) -> int:
    return op("div", op("mul", x, _between(op, const, op("add", x, const(3.0)), 0.0, 6.0)), const(6.0))


def _softshrink(op: Op, const: Const, x: int, width: int) -> int:
    # 0 * x hands NaN on, as PyTorch does
    below = op("where", op("lt", x, op("neg", width)), op("add", x, width), op("mul", const(0.0), x))
    return op("where", op("gt", x, width), op("sub", x, width), below)


def _trunc(op: Op, const: Const, x: int) -> int:
    return op("where", op("lt", x, const(0.0)), op("ceil", x), op("floor", x))


def _sinh(op: Op, const: Const, x: int) -> int:
    return op("mul", const(0.5), op("sub", op("expm1", x), op("expm1", op("neg", x))))


_WRITTEN: dict[str, Callable[..., int]] = {
    "silu": lambda op, const, x: op("mul", x, op("sigmoid", x)),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": lambda op, const, x: op("maximum", x, const(0.0)),
    "relu6": lambda op, const, x: _between(op, const, x, 0.0, 6.0),
    "softplus": _softplus,
    "logsigmoid": _logsigmoid,
    "square": lambda op, const, x: op("mul", x, x),
    "reciprocal": lambda op, const, x: op("div", const(1.0), x),
    "leaky_relu": lambda op, const, x, slope: op("where", op("lt", x, const(0.0)), op("mul", slope, x), x),
    "elu": _elu,
    "celu": _celu,
    "selu": lambda op, const, x: op("mul", const(SELU_SCALE), _elu(op, const, x, const(SELU_ALPHA))),
    "mish": lambda op, const, x: op("mul", x, op("tanh", softplus(op, const, x))),
    "hardsigmoid": _hardsigmoid,
    "hardswish": _hardswish,
    "hardtanh": lambda op, const, x, low, high: op("minimum", op("maximum", x, low), high),
    "hardshrink": lambda op, const, x, width: op("where", op("le", op("abs", x), width), const(0.0), x),
    "softshrink": _softshrink,
    "threshold": lambda op, const, x, least, value: op("where", op("le", x, least), value, x),
    "tanhshrink": lambda op, const, x: op("sub", x, op("tanh", x)),
    "softsign": lambda op, const, x: op("div", x, op("add", const(1.0), op("abs", x))),
    "exp2": lambda op, const, x: op("exp", op("mul", x, const(math.log(2)))),
    "log2": lambda op, const, x: op("mul", op("log", x), const(1 / math.log(2))),
    "log10": lambda op, const, x: op("mul", op("log", x), const(1 / math.log(10))),
    "sinh": _sinh,
    "cosh": lambda op, const, x: op("mul", const(0.5), op("add", op("exp", x), op("exp", op("neg", x)))),
    "tan": lambda op, const, x: op("div", op("sin", x), op("cos", x)),
    "trunc": _trunc,
    "frac": lambda op, const, x: op("sub", x, _trunc(op, const, x)),
    "clamp": lambda op, const, x, low, high: op("minimum", op("maximum", x, low), high),
}
