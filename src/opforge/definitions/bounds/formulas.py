"""How far float32 may be off a formula: its reference is run on numbers that carry their rounding errors along.

`formula_errors(reference, inputs, outputs, scalars)` is a Tolerance's `errors` for any reference that is made of the
methods below. Each operation adds its own rounding to what its arguments carry, to first order. Sums are bounded as
definitions.bounds.sums bounds them. Every intermediate is float32; the output alone is rounded to its dtype.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opforge.core.definition.rounding_errors import Errors
from opforge.core.definition.tensors import ScalarValue
from opforge.definitions.bounds.scans import prefix_product_errors, prefix_sum_errors
from opforge.definitions.bounds.sums import BEYOND, EPSILON, product_errors, sum_errors
from opforge.definitions.bounds.torch_calls import FUNCTIONS, called

MOST = 3.4028234663852886e38
"""The largest float32."""
LEAST = 2.0**-126
"""The smallest normal float32: hardware may flush what is smaller at any operation."""


@dataclass(frozen=True, eq=False)
class Truth:
    """A condition, and where rounding errors may turn it over."""

    value: Any
    unsure: Any

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return called(function, args, kwargs or {})

    def __and__(self, other: Truth) -> Truth:
        return Truth(self.value & other.value, self.unsure | other.unsure)

    def __or__(self, other: Truth) -> Truth:
        return Truth(self.value | other.value, self.unsure | other.unsure)

    def __invert__(self) -> Truth:
        return Truth(~self.value, self.unsure)


@dataclass(frozen=True, eq=False)
class Rounded:
    """A float64 tensor, with what float32 may be off it (largest, typical) and the size of what led to it."""

    value: Any
    largest: Any
    typical: Any
    reached: Any
    cut: bool = False
    """Whether tensor cores add up its products with another matrix: of 16-bit inputs."""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return called(function, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name not in FUNCTIONS:
            raise AttributeError(f"{name!r} is none of what formula_errors knows. Give `magnitude` instead.")
        return functools.partial(FUNCTIONS[name], self)

    def __add__(self, other: Any) -> Rounded:
        b = self._of(other)
        return _joined(self.value + b.value, self, b, 1.0, 1.0)

    def __sub__(self, other: Any) -> Rounded:
        b = self._of(other)
        return _joined(self.value - b.value, self, b, 1.0, 1.0)

    def __mul__(self, other: Any) -> Rounded:
        b = self._of(other)
        product = _joined(self.value * b.value, self, b, b.value.abs() + b.largest, self.value.abs())
        # a factor that is 0 in float32 makes NaN of an infinity, any other one an infinity
        return product.beyond((self.vanishes & b.value.isinf()) | (b.vanishes & self.value.isinf()))

    def __truediv__(self, other: Any) -> Rounded:
        b = self._of(other)
        result = self.value / b.value
        # a divisor that may be 0 leaves no bound, and a finite slope: what is exact has no error along it
        least = (b.value.abs() - b.largest).clamp(min=0.0)
        # of one that overflowed on the way a quotient of 0 is left
        slope = least.reciprocal().clamp(max=BEYOND)
        # 2.5 units: a GPU divides by a reciprocal
        quotient = _joined(result, self, b, slope, result.abs() * slope, 2.5).off_by(_size(result).where(b.lost, 0.0))
        # a divisor without a sign leaves none to an infinity
        return quotient.beyond(b.vanishes & self.value.isinf())

    def __matmul__(self, other: Rounded) -> Rounded:
        own = product_errors(self.value, other.value, cut=self.cut)
        a, b = _size(self.value), _size(other.value)
        largest = self.largest @ b + (a + self.largest) @ other.largest + own.largest
        typical = self.typical @ b + (a + self.typical) @ other.typical + own.typical
        # an infinity in a row or a column makes what it meets infinite, and no overflow
        sides = (self.abs().amax(dim=-1, keepdim=True), other.abs().amax(dim=-2, keepdim=True))
        found = _cleaned(self.value @ other.value, largest, typical, sides)
        return Rounded(found.value, found.largest, found.typical, found.reached.maximum(own.reached))

    def __radd__(self, other: Any) -> Rounded:
        return self._of(other) + self

    def __rsub__(self, other: Any) -> Rounded:
        return self._of(other) - self

    def __rmul__(self, other: Any) -> Rounded:
        return self._of(other) * self

    def __rtruediv__(self, other: Any) -> Rounded:
        return self._of(other) / self

    def __neg__(self) -> Rounded:
        return Rounded(-self.value, self.largest, self.typical, self.reached)

    def __lt__(self, other: Any) -> Truth:
        return self._compared(other, lambda a, b: a < b)

    def __le__(self, other: Any) -> Truth:
        return self._compared(other, lambda a, b: a <= b)

    def __gt__(self, other: Any) -> Truth:
        return self._compared(other, lambda a, b: a > b)

    def __ge__(self, other: Any) -> Truth:
        return self._compared(other, lambda a, b: a >= b)

    def eq(self, other: Any) -> Truth:
        return self._compared(other, lambda a, b: a == b)

    def ne(self, other: Any) -> Truth:
        return self._compared(other, lambda a, b: a != b)

    def exp(self) -> Rounded:
        # an argument is multiplied by log2(e) first: eps * |x|, as in definitions.bounds.sums.exp_errors
        return self._mapped(lambda v: v.exp(), lambda x, y: y * (4 + 3 * x.abs()))

    def log(self) -> Rounded:
        # a GPU's logarithm is off by units of 1 near 1
        return self._mapped(lambda v: v.clamp(min=0.0).log(), lambda x, y: 2 + 2 * y.abs(), self.value.log())

    def sqrt(self) -> Rounded:
        return self._mapped(lambda v: v.clamp(min=0.0).sqrt(), lambda x, y: 2 * y, self.value.sqrt())

    def rsqrt(self) -> Rounded:
        return self._mapped(lambda v: v.clamp(min=0.0).rsqrt(), lambda x, y: 2.5 * y, self.value.rsqrt())

    def abs(self) -> Rounded:
        return Rounded(self.value.abs(), self.largest, self.typical, self.reached)

    def expm1(self) -> Rounded:
        # near zero of itself; elsewhere an exponential from which 1 is taken
        def units(x: Any, y: Any) -> Any:
            return _near(x, 0.4, 4 * y.abs(), (y + 1) * (4 + 3 * x.abs()) + y.abs())

        return self._mapped(lambda v: v.expm1(), units)

    def log1p(self) -> Rounded:
        far = self.value.log1p()
        return self._mapped(
            lambda v: v.clamp(min=-1.0).log1p(), lambda x, y: _near(x, 0.25, 4 * y.abs(), 3 + 2 * y.abs()), far
        )

    def sin(self) -> Rounded:
        return self._mapped(lambda v: v.sin(), lambda x, y: _near(x, 1.0, 3 * y.abs(), 2 + x.abs()))

    def cos(self) -> Rounded:
        return self._mapped(lambda v: v.cos(), lambda x, y: 2 + x.abs())

    def tanh(self) -> Rounded:
        return self._mapped(lambda v: v.tanh(), lambda x, y: 6 * y.abs())

    def sigmoid(self) -> Rounded:
        # below -87.3 it is smaller than the least normal number, and may be 0
        return self._mapped(lambda v: v.sigmoid(), lambda x, y: y * (3 + (1 - y) * (4 + 3 * x.abs())) + 1.5e-29)

    def erf(self) -> Rounded:
        return self._mapped(lambda v: v.erf(), lambda x, y: 6 * y.abs())

    def erfc(self) -> Rounded:
        # exp(-x * x) is made of a rounded square; below 1e-36 it may be 0
        return self._mapped(lambda v: v.erfc(), lambda x, y: y * (8 + 4 * x.clamp(min=0.0).square()) + 1.5e-29)

    def floor(self) -> Rounded:
        return self._mapped(lambda v: v.floor(), lambda x, y: 0 * y)

    def ceil(self) -> Rounded:
        return self._mapped(lambda v: v.ceil(), lambda x, y: 0 * y)

    def maximum(self, other: Any) -> Rounded:
        return _chosen(self < other, self._of(other), self, self.value.maximum(self._of(other).value))

    def minimum(self, other: Any) -> Rounded:
        return _chosen(self > other, self._of(other), self, self.value.minimum(self._of(other).value))

    def clamp(self, min: Any = None, max: Any = None) -> Rounded:
        above = self if min is None else self.maximum(min)
        return above if max is None else above.minimum(max)

    def where(self, condition: Truth, other: Any) -> Rounded:
        b = self._of(other)
        return _chosen(condition, self, b, self.value.where(condition.value, b.value))

    def sum(self, dim: int, keepdim: bool) -> Rounded:
        return self._reduced(dim, self.value.sum(dim=dim, keepdim=True), 1.0)

    def mean(self, dim: int, keepdim: bool) -> Rounded:
        return self._reduced(dim, self.value.mean(dim=dim, keepdim=True), 1.0 / max(1, self.value.shape[dim]))

    def amax(self, dim: int, keepdim: bool) -> Rounded:
        return self._parts(lambda part: part.amax(dim=dim, keepdim=True))

    def amin(self, dim: int, keepdim: bool) -> Rounded:
        return Rounded(
            self.value.amin(dim=dim, keepdim=True),
            *(part.amax(dim=dim, keepdim=True) for part in (self.largest, self.typical, self.reached)),
        )

    def cumsum(self, dim: int) -> Rounded:
        own = prefix_sum_errors(self.value.movedim(dim, -1))
        largest, typical = self.largest.cumsum(dim=dim), self.typical.cumsum(dim=dim)
        return self._scanned(dim, self.value.cumsum(dim=dim), own, largest, typical)

    def cumprod(self, dim: int) -> Rounded:
        own, result = prefix_product_errors(self.value.movedim(dim, -1)), self.value.cumprod(dim=dim)
        # relative errors add up; a factor that may be 0 leaves no bound on what comes after it
        shares = [
            (part / _size(self.value)).nan_to_num(nan=0.0, posinf=BEYOND).clamp(max=BEYOND).log1p().cumsum(dim=dim)
            for part in (self.largest, self.typical)
        ]
        largest, typical = (_size(result) * share.clamp(max=300.0).expm1() for share in shares)
        unknown = (self.largest > self.value.abs()).double().cummax(dim=dim).values > 0
        return self._scanned(dim, result, own, largest.where(~unknown, BEYOND), typical.where(~unknown, BEYOND))

    def cummax(self, dim: int) -> Extremes:
        return Extremes(self._extreme(dim, self.value.cummax(dim=dim).values))

    def cummin(self, dim: int) -> Extremes:
        return Extremes(self._extreme(dim, self.value.cummin(dim=dim).values))

    def _extreme(self, dim: int, value: Any) -> Rounded:
        """What is chosen of the elements until now is off by no more than the one of them that is off most."""
        largest, typical, reached = (part.cummax(dim=dim).values for part in (self.largest, self.typical, self.reached))
        return Rounded(value, largest, typical, reached, self.cut)

    def _scanned(self, dim: int, result: Any, own: Errors, largest: Any, typical: Any) -> Rounded:
        own_largest, own_typical, peak = (part.movedim(-1, dim) for part in (own.largest, own.typical, own.reached))
        found = _cleaned(result, largest + own_largest, typical + own_typical, (self.abs().cummax(dim=dim).values,))
        before = self.reached.cummax(dim=dim).values if self.value.numel() else self.reached
        return Rounded(found.value, found.largest, found.typical, found.reached.maximum(peak).maximum(before))

    def squeeze(self, dim: int) -> Rounded:
        return self._parts(lambda part: part.squeeze(dim))

    def transpose(self, first: int, second: int) -> Rounded:
        return self._parts(lambda part: part.transpose(first, second))

    def permute(self, *order: int) -> Rounded:
        return self._parts(lambda part: part.permute(*order))

    def expand_as(self, other: Rounded) -> Rounded:
        return self._parts(lambda part: part.expand_as(other.value))

    def __getitem__(self, index: Any) -> Rounded:
        return self._parts(lambda part: part[index])

    @property
    def vanishes(self) -> Any:
        """Where it may be 0 in float32, and need not be: by its error, or because it is flushed."""
        size = self.value.abs()
        return (size <= self.largest + LEAST) & ((size > 0) | (self.largest > 0))

    @property
    def lost(self) -> Any:
        """Where float32 overflowed on the way, or may have: an infinity of either sign may stand there. A sum that is
        made of fused multiply-adds keeps the sign of what overflowed first.
        """
        return self.reached > MOST

    @property
    def margin(self) -> Any:
        """How far off it may be as an argument: without bound where it is lost."""
        return self.largest.where(~self.lost, BEYOND)

    def off_by(self, more: Any) -> Rounded:
        """The same, off by `more` beside its own errors."""
        return Rounded(self.value, self.largest + more, self.typical + more, self.reached, self.cut)

    def beyond(self, where: Any) -> Rounded:
        """The same, of which every value that is not finite is right in some places."""
        return Rounded(self.value, self.largest, self.typical, self.reached.where(~where, BEYOND))

    @property
    def ndim(self) -> int:
        return int(self.value.ndim)

    def new_tensor(self, number: Any) -> Rounded:
        return self._of(number)

    def _of(self, other: Any) -> Rounded:
        return other if isinstance(other, Rounded) else _number(other, self.value)

    def _parts(self, change: Callable[[Any], Any]) -> Rounded:
        value, largest, typical, reached = (
            change(part) for part in (self.value, self.largest, self.typical, self.reached)
        )
        return Rounded(value, largest, typical, reached, self.cut)

    def _compared(self, other: Any, compare: Callable[[Any, Any], Any]) -> Truth:
        b = self._of(other)
        margin = self.margin + b.margin
        near = ((self.value - b.value).abs() <= margin) & (margin > 0)
        return Truth(compare(self.value, b.value), near)

    def _mapped(self, function: Callable[[Any], Any], units: Callable[[Any, Any], Any], exact: Any = None) -> Rounded:
        """A function of one argument: what its argument carries is read off the function itself, on both sides."""
        result = function(self.value) if exact is None else exact
        margin = self.margin
        above = (function(self.value + margin) - result).abs()
        carried = above.maximum((function(self.value - margin) - result).abs())
        carried = carried.where(margin > 0, 0 * margin)
        own = EPSILON * units(self.value, result)
        share = (self.typical / self.largest).nan_to_num(nan=0.0, posinf=1.0).where(~self.lost, 1.0)
        return _cleaned(result, carried + own, carried * share + 0.5 * own, (self,))

    def _reduced(self, dim: int, result: Any, factor: float) -> Rounded:
        terms = self.value.movedim(dim, -1)
        own = sum_errors(terms).times(factor)
        # the errors of terms may have one sign, as those of a mean that was taken away have
        largest, typical = (
            own_part.movedim(-1, dim) + factor * part.sum(dim=dim, keepdim=True)
            for own_part, part in ((own.largest, self.largest), (own.typical, self.typical))
        )
        # what is added up may leave the range of float32 before it is divided
        peak = (own.reached / factor).movedim(-1, dim).maximum(self.reached.amax(dim=dim, keepdim=True))
        own_size = EPSILON * result.abs()
        most = self.abs().amax(dim=dim, keepdim=True)
        found = _cleaned(result, largest + own_size, typical + 0.5 * own_size, (most,))
        return Rounded(found.value, found.largest, found.typical, peak.maximum(found.reached))


@dataclass(frozen=True, eq=False)
class Extremes:
    """What PyTorch gives of running extremes, without their places."""

    values: Rounded


def _chosen(condition: Truth, yes: Rounded, no: Rounded, result: Any) -> Rounded:
    """What a condition chooses; either where rounding may turn it over."""
    apart = (yes.value - no.value).abs().nan_to_num(nan=0.0, posinf=BEYOND) + yes.largest + no.largest
    largest = apart.where(condition.unsure, yes.largest.where(condition.value, no.largest))
    typical = apart.where(condition.unsure, yes.typical.where(condition.value, no.typical))
    reached = yes.reached.maximum(no.reached)
    shape = result.shape
    return Rounded(result, largest.expand(shape), typical.expand(shape), reached.expand(shape))


def formula_errors(
    reference: Callable[..., Any],
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    scalars: Mapping[str, ScalarValue],
    *,
    cut: bool = False,
) -> dict[str, Errors]:
    """Errors of each output of `reference`, run on `inputs` (exact, float64) in place of tensors.

    reference   called with the inputs in order and the scalars by name; it uses operators, the methods of Rounded
                (reductions with keepdim=True) and functions of PyTorch that bounds.torch_calls knows
    cut         whether tensor cores add up products of matrices
    """
    exact = [Rounded(value, *(0 * _size(value),) * 2, _size(value), cut) for value in inputs.values()]
    first = exact[0].value
    numbers = {name: _number(value, first) for name, value in scalars.items()}
    returned = reference(*exact, **numbers)
    results = returned if isinstance(returned, tuple) else (returned,)
    return {
        name: Errors(result.largest, result.typical, result.reached)
        for name, result in zip(outputs, results, strict=True)
    }


def _number(given: Any, like: Any) -> Rounded:
    """A parameter or constant: rounded to float32 where it is none."""
    value = like.new_tensor(float(given))
    if abs(float(given)) > 3e38:
        return Rounded(value, 0 * _size(value), 0 * _size(value), _size(value))
    rounded = struct.unpack("f", struct.pack("f", float(given)))[0]
    off = like.new_tensor(abs(rounded - float(given)))
    return Rounded(value, off, off, _size(value))


def _near(x: Any, width: float, near: Any, far: Any) -> Any:
    """Units of a function that is relative to itself within `width` of zero."""
    return near.where(x.abs() <= width, far)


def _size(value: Any) -> Any:
    return value.abs().nan_to_num(nan=0.0, posinf=0.0)


def _joined(result: Any, a: Rounded, b: Rounded, of_a: Any, of_b: Any, units: float = 1.0) -> Rounded:
    """An operation on two numbers, with the slopes along which their errors come through."""
    own = EPSILON * _size(result)
    largest = a.largest * of_a + b.largest * of_b + units * own
    typical = a.typical * of_a + b.typical * of_b + 0.5 * units * own
    return _cleaned(result, largest, typical, (a, b))


def _cleaned(result: Any, largest: Any, typical: Any, arguments: tuple[Rounded, ...]) -> Rounded:
    """Errors without infinities, of the shape of the result. `reached` shows where float32 or float64 overflowed, or
    may have: an error that leaves the range of float32 may be an infinity.
    """
    overflowed = result.isinf()
    for argument in arguments:
        overflowed = overflowed & argument.value.isfinite()
    # an infinity out of finite numbers overflowed; one of infinite numbers is right, and nothing was reached
    size = _size(result)
    reached = size.where(~overflowed, BEYOND)
    for argument in arguments:
        reached = reached.maximum(argument.reached)
    largest, typical = (
        (part + LEAST).nan_to_num(nan=0.0, posinf=BEYOND).clamp(max=BEYOND).expand(result.shape)
        for part in (largest, typical)
    )
    reached = reached.maximum((size + largest).where(result.isfinite(), 0.0))
    return Rounded(result, largest, typical, reached.expand(result.shape))
