"""libdevice's functions for Triton's interpreter, where they return None.

PyTorch computes them here with its modes off: what the interpreter does itself is no operation of the kernel's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch.utils._python_dispatch import _disable_current_modes
from triton.language.extra import libdevice
from triton.runtime.interpreter import TensorHandle

F = Callable[..., torch.Tensor]

_SAME = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "ceil",
    "copysign",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "fmod",
    "hypot",
    "isnan",
    "ldexp",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "nextafter",
    "pow",
    "rsqrt",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
]
"""Called the same in PyTorch."""


def _half_away(x: torch.Tensor) -> torch.Tensor:
    return torch.trunc(x + torch.copysign(torch.full_like(x, 0.5), x))


def _exact(function: F) -> F:
    """Of the operands in float64, rounded once."""
    return lambda *operands: function(*(x.double() for x in operands)).to(operands[0].dtype)


def _norm(*operands: torch.Tensor) -> torch.Tensor:
    return torch.stack([x.double() for x in operands]).square().sum(0).sqrt()


def _ieee_remainder(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x - torch.round(x / y) * y


_OTHERS: dict[str, F] = {
    "rint": torch.round,
    "nearbyint": torch.round,
    "round": _half_away,
    "llrint": lambda x: torch.round(x).long(),
    "llround": lambda x: _half_away(x).long(),
    "signbit": lambda x: torch.signbit(x).int(),
    "isinf": torch.isinf,
    "finitef": torch.isfinite,
    "isfinited": torch.isfinite,
    "erfinv": torch.erfinv,
    "erfcinv": _exact(lambda x: torch.erfinv(1 - x)),
    "erfcx": torch.special.erfcx,
    "tgamma": _exact(lambda x: torch.where(x > 0, 1.0, torch.cos(torch.pi * torch.floor(x))) * torch.lgamma(x).exp()),
    "normcdf": torch.special.ndtr,
    "normcdfinv": torch.special.ndtri,
    "cyl_bessel_i0": torch.special.i0,
    "cyl_bessel_i1": torch.special.i1,
    "j0": torch.special.bessel_j0,
    "j1": torch.special.bessel_j1,
    "y0": torch.special.bessel_y0,
    "y1": torch.special.bessel_y1,
    "cbrt": _exact(lambda x: torch.copysign(x.abs().pow(1 / 3), x)),
    "rcbrt": _exact(lambda x: 1 / torch.copysign(x.abs().pow(1 / 3), x)),
    "cospi": _exact(lambda x: torch.cos(torch.pi * torch.remainder(x, 2))),
    "sinpi": _exact(lambda x: torch.sin(torch.pi * torch.remainder(x, 2))),
    "exp10": _exact(lambda x: torch.pow(10.0, x)),
    "fdim": lambda x, y: torch.where(x.isnan() | y.isnan(), x + y, torch.clamp(x - y, min=0)),
    "remainder": _exact(_ieee_remainder),
    "rhypot": _exact(lambda x, y: 1 / torch.hypot(x, y)),
    "norm3d": lambda *x: _norm(*x).to(x[0].dtype),
    "norm4d": lambda *x: _norm(*x).to(x[0].dtype),
    "rnorm3d": lambda *x: (1 / _norm(*x)).to(x[0].dtype),
    "rnorm4d": lambda *x: (1 / _norm(*x)).to(x[0].dtype),
    "saturatef": lambda x: torch.nan_to_num(x, nan=0.0).clamp(0, 1),
    "scalbn": lambda x, n: torch.ldexp(x, n),
    "ilogb": lambda x: (torch.frexp(x)[1] - 1).int(),
    "logb": lambda x: (torch.frexp(x)[1] - 1).to(x.dtype),
    "fma": _exact(lambda x, y, z: x * y + z),
    "fma_rn": _exact(lambda x, y, z: x * y + z),
    "add_rn": torch.add,
    "sub_rn": torch.sub,
    "mul_rn": torch.mul,
    "div_rn": torch.div,
    "rcp_rn": torch.reciprocal,
    "sqrt_rn": torch.sqrt,
    "rsqrt_rn": _exact(torch.rsqrt),
    "fast_tanhf": torch.tanh,
    "fast_tanf": torch.tan,
    "fast_expf": torch.exp,
    "fast_exp10f": _exact(lambda x: torch.pow(10.0, x)),
    "fast_logf": torch.log,
    "fast_log2f": torch.log2,
    "fast_log10f": torch.log10,
    "fast_sinf": torch.sin,
    "fast_cosf": torch.cos,
    "fast_powf": torch.pow,
    "fast_dividef": torch.div,
    "int_as_float": lambda x: x.view(torch.float32),
    "uint_as_float": lambda x: x.view(torch.float32),
    "float_as_int": lambda x: x.view(torch.int32),
    "longlong_as_double": lambda x: x.view(torch.float64),
    "double_as_longlong": lambda x: x.view(torch.int64),
    "int2float_rn": lambda x: x.float(),
    "ll2float_rn": lambda x: x.float(),
    "int2double_rn": lambda x: x.double(),
    "ll2double_rn": lambda x: x.double(),
    "double2float_rn": lambda x: x.float(),
    **{
        f"{made}2{to}_{suffix}": (lambda x, rounded=rounded, dtype=dtype: rounded(x).to(dtype))
        for made in ("float", "double")
        for to, dtype in (("int", torch.int32), ("ll", torch.int64))
        for suffix, rounded in (("rn", torch.round), ("rz", torch.trunc), ("rd", torch.floor), ("ru", torch.ceil))
    },
}
FUNCTIONS: dict[str, F] = {**{name: getattr(torch, name) for name in _SAME}, **_OTHERS}

_TYPES = {
    torch.bool: tl.int1,
    torch.int32: tl.int32,
    torch.int64: tl.int64,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}


def _array(value: Any) -> torch.Tensor:
    if isinstance(value, tl.tensor):
        return torch.from_numpy(np.array(value.handle.data))
    value = getattr(value, "value", value)
    return torch.tensor(value, dtype=torch.int32 if isinstance(value, int) else torch.float32)


def emulated(name: str) -> Callable[..., tl.tensor]:
    """The function of this name, on the interpreter's tensors."""
    function = FUNCTIONS[name]

    def call(*args: Any, **_: Any) -> tl.tensor:
        first = next(a for a in args if isinstance(a, tl.tensor))
        if narrow := [a.dtype for a in args if isinstance(a, tl.tensor) and a.dtype in (tl.float16, tl.bfloat16)]:
            # as a compiler says it
            raise ValueError(f"libdevice.{name} takes float32 and float64, not {narrow[0]}; convert it with .to(...)")
        with _disable_current_modes():
            out = function(*map(_array, args))
            dtype = _TYPES[out.dtype]
            data = out.numpy()
        scalar = not first.type.is_block()
        return tl.tensor(TensorHandle(data, dtype), dtype if scalar else tl.block_type(dtype, list(data.shape)))

    # said to be what it stands for, to whoever asks which code a kernel calls
    call.__module__, call.__name__ = libdevice.__name__, name
    return call


def _absent(name: str) -> Callable[..., tl.tensor]:
    def call(*args: Any, **_: Any) -> tl.tensor:
        raise NotImplementedError(f"libdevice.{name} not supported in interpreter mode")

    call.__module__, call.__name__ = libdevice.__name__, name
    return call


def install() -> None:
    """Put them in libdevice's place."""
    for name in dir(libdevice):
        if callable(getattr(libdevice, name)) and not name.startswith("_"):
            setattr(libdevice, name, emulated(name) if name in FUNCTIONS else _absent(name))
