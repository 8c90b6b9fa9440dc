"""What opforge knows of number formats, without importing a toolchain.

`significand` counts the implicit leading bit, so the relative spacing of values in [1, 2) is 2**(1 - significand).
Source: IEEE 754-2019 table 3.5; bfloat16 and the FP8 formats from the OCP 8-bit floating point specification 1.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class DType:
    """One number format: bytes per element, significand bits, exponent of the least normal value, largest
    finite value.
    """

    name: str
    itemsize: int
    significand: int
    min_exponent: int
    largest: float

    @property
    def whole(self) -> bool:
        """Whether its values are whole numbers (or True and False): they are compared exactly."""
        return self.name.startswith(("int", "uint", "bool"))

    @property
    def least(self) -> int:
        """The least of a format of whole numbers."""
        return -self.most - 1 if self.name.startswith("int") else 0

    @property
    def most(self) -> int:
        """The largest of a format of whole numbers, which a float may not hold."""
        return (1 << (self.itemsize * 8 - 1)) - 1 if self.name.startswith("int") else int(self.largest)

    @property
    def epsilon(self) -> float:
        """The spacing of values in [1, 2)."""
        return float(2.0 ** (1 - self.significand))


DTYPES: Mapping[str, DType] = MappingProxyType(
    {
        dtype.name: dtype
        for dtype in (
            DType(name="float64", itemsize=8, significand=53, min_exponent=-1022, largest=1.7976931348623157e308),
            DType(name="float32", itemsize=4, significand=24, min_exponent=-126, largest=3.4028234663852886e38),
            DType(name="float16", itemsize=2, significand=11, min_exponent=-14, largest=65504.0),
            DType(name="bfloat16", itemsize=2, significand=8, min_exponent=-126, largest=3.3895313892515355e38),
            DType(name="float8_e4m3fn", itemsize=1, significand=4, min_exponent=-6, largest=448.0),
            DType(name="float8_e5m2", itemsize=1, significand=3, min_exponent=-14, largest=57344.0),
            DType(name="uint8", itemsize=1, significand=8, min_exponent=0, largest=255.0),
            DType(name="int16", itemsize=2, significand=16, min_exponent=0, largest=32767.0),
            DType(name="int8", itemsize=1, significand=8, min_exponent=0, largest=127.0),
            DType(name="int32", itemsize=4, significand=32, min_exponent=0, largest=2147483647.0),
            DType(name="bool", itemsize=1, significand=1, min_exponent=0, largest=1.0),
            DType(name="int64", itemsize=8, significand=64, min_exponent=0, largest=9.223372036854775807e18),
        )
    }
)
