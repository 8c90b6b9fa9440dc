"""Arithmetic that is coarser than declared: an operator's own reference in float64, with factors, sums or exponentials
of fewer digits.

What TF32, bfloat16 and float16 tensor cores, accumulators of 16 bits, adders that cut off and hasty approximations of
exp give, on any machine and for any operator: the reference runs under a mode that intercepts its products, sums and
exponentials.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from opforge.core.definition.call_form import formed
from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.operator import Case, Operator

STEPS = 256
"""A sum is rounded so often, or after every 32 terms where that is less often: an accumulator of few digits is off by
that many roundings at the least.
"""


def rounded(values: Any, digits: int) -> Any:
    """float64 values to so many significant binary digits, to nearest."""
    import torch

    share, exponent = torch.frexp(values)
    return torch.ldexp((share * 2.0**digits).round() * 2.0**-digits, exponent)


def cut_off(values: Any, digits: int) -> Any:
    """The same, towards zero."""
    import torch

    share, exponent = torch.frexp(values)
    return torch.ldexp((share * 2.0**digits).trunc() * 2.0**-digits, exponent)


@dataclass(frozen=True)
class Coarse:
    """How an impostor calculates: what becomes of inputs (and so of factors), of a running sum, of exponentials.

    factors   binary digits that inputs keep; 0: all
    digits    binary digits that a running sum is rounded to, to nearest; 0: none
    """

    factors: int = 0
    digits: int = 0
    sums: Callable[[Any], Any] | None = None
    exponentials: Callable[[Any], Any] | None = None

    def due(self, operator: Operator, case: Case, dtype: str) -> bool:
        """Whether it is an impostor here: factors as coarse as declared are none, nor is an exp of a product's sum,
        which is known no better. Where factors are made on the way, and rounded to the dtype, their roundings hide
        those of a sum with 3 digits more.
        """
        if self.digits and operator.tolerance.rounds_factors and self.digits >= DTYPES[dtype].significand + 3:
            return False
        if self.exponentials is not None and operator.unit == "matrix":
            return False
        declared = operator.compute_dtype_of(dtype, case.scalars)
        return self.factors == 0 or self.factors < (11 if declared == "tfloat32" else DTYPES[declared].significand)


IMPOSTORS: Mapping[str, Coarse] = {
    "TF32 factors": Coarse(factors=11),
    "bfloat16 factors": Coarse(factors=8),
    "sums in float16": Coarse(sums=lambda sums: rounded(sums, 11), digits=11),
    "sums in bfloat16": Coarse(sums=lambda sums: rounded(sums, 8), digits=8),
    "sums cut off at 14 bits": Coarse(sums=lambda sums: cut_off(sums, 14)),
    "exp of 14 bits": Coarse(exponentials=lambda found: cut_off(found, 14)),
}
"""float16 factors have the digits of TF32 ones."""


def outputs_of(
    coarse: Coarse, operator: Operator, case: Case, dtype: str, inputs: Mapping[str, Any]
) -> list[Any] | None:
    """What the reference gives, calculated so; None where nothing it does would be any different."""
    import torch

    operator = formed(operator, {**case.axes, **case.scalars})
    given, changed = [], 0
    for spec in operator.inputs:
        tensor = inputs[spec.name]
        wide = tensor.to(torch.float64) if tensor.is_floating_point() else tensor
        if (
            coarse.factors
            and tensor.is_floating_point()
            and DTYPES[str(tensor.dtype).removeprefix("torch.")].significand > coarse.factors
        ):
            wide, changed = rounded(wide, coarse.factors), changed + 1
        given.append(wide)
    mode = _mode()(coarse)
    with torch.no_grad(), mode:
        returned = operator.reference(*given, **operator.scalar_values(case.scalars))
    if not changed and not mode.changed:
        return None
    return list(returned if isinstance(returned, tuple) else (returned,))


def _mode() -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Intercepting(TorchDispatchMode):  # type: ignore[misc]
        """Products, sums and exponentials of float64 tensors, as an impostor has them."""

        def __init__(self, coarse: Coarse) -> None:
            super().__init__()
            self.coarse, self.changed = coarse, 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__
            wide = bool(args) and getattr(args[0], "is_floating_point", lambda: False)()
            sums, exponentials = self.coarse.sums, self.coarse.exponentials
            if wide and sums is not None and name in ("mm", "bmm"):
                self.changed += 1
                return _product(args[0], args[1], sums)
            if wide and sums is not None and name in ("sum", "mean"):
                self.changed += 1
                whole = tuple(range(args[0].ndim))
                dims = args[1] if len(args) > 1 and args[1] is not None else whole
                keep = args[2] if len(args) > 2 else bool((kwargs or {}).get("keepdim", False))
                return _sum(args[0], tuple(dims) or whole, keep, sums, mean=name == "mean")
            result = func(*args, **(kwargs or {}))
            if wide and exponentials is not None and name in ("exp", "sigmoid", "silu"):
                self.changed += 1
                if name == "exp":
                    return exponentials(result)
                share = 1 / (1 + exponentials((-args[0]).exp()))
                return share if name == "sigmoid" else args[0] * share
            return result

    return Intercepting


def _product(a: Any, b: Any, sums: Callable[[Any], Any]) -> Any:
    terms = a.shape[-1]
    step = max(32, -(-terms // STEPS))
    total = a.new_zeros((*a.shape[:-1], b.shape[-1]))
    for first in range(0, terms, step):
        total = sums(total + a[..., first : first + step] @ b[..., first : first + step, :])
    return total


def _sum(x: Any, dims: tuple[int, ...], keep: bool, sums: Callable[[Any], Any], *, mean: bool) -> Any:
    dims = tuple(dim % x.ndim for dim in dims) if x.ndim else ()
    kept = [dim for dim in range(x.ndim) if dim not in dims]
    rows = x.permute(*kept, *dims).reshape(*(x.shape[dim] for dim in kept), -1)
    terms = rows.shape[-1]
    step = max(32, -(-terms // STEPS))
    total = rows.new_zeros(rows.shape[:-1])
    for first in range(0, terms, step):
        total = sums(total + rows[..., first : first + step].sum(dim=-1))
    total = total / terms if mean else total
    return total.reshape([1 if dim in dims else x.shape[dim] for dim in range(x.ndim)]) if keep else total
