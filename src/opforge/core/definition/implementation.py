"""Implementation: one file that computes an operator on one backend, and what it says of itself.

The statements (`SUPPORTS`, `SPACE`, `LIMITS`, `DEFAULT`, …) are literals in the file, read without running it, so
that `opforge list` and `opforge show` need no toolchain.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.operator import ScalarValue
from opforge.core.definition.shapes import Axes
from opforge.core.language.expr import evaluate

LAYOUTS = ("contiguous", "rows", "strided")
"""What an implementation can read: contiguous; rows with any stride, each contiguous inside; any strides at all."""

HOPPER: Mapping[str, int | tuple[str, ...]] = {
    "shared_bytes_per_block": 232448,
    "shared_bytes_per_unit": 233472,
    "registers_per_unit": 65536,
    "threads_per_block": 1024,
    "threads_per_unit": 2048,
    "blocks_per_unit": 32,
    "vector_bytes": 16,
    "warp_size": 32,
    "units": 132,
    "cache_bytes": 50 << 20,
    "capabilities": ("bfloat16", "tensor_cores", "async_copy", "float8", "wgmma", "tma", "clusters"),
}
"""What limits of a device are where nothing is known of it: an H200's."""

COMPARED_WITH = ("compile", "library")
"""Backends that are there to be compared with: neither dispatch nor tuning chooses them."""

COMPARED_AS_IS = ("torch", "compile", "library")
"""Backends whose files call what a user calls: they may say that it is INACCURATE, and are timed then."""

EAGER = "torch_eager"
"""The implementation that calls what a user calls in PyTorch: the baseline."""

DEFINITION = "torch_definition"
"""The implementation in PyTorch operations that is right everywhere, where the user's call is not: the fallback there,
and no baseline.
"""


@dataclass(frozen=True)
class Accepted:
    """The implementation takes this call."""


@dataclass(frozen=True)
class Rejected:
    """The implementation does not take this call, and why."""

    reason: str


@dataclass(frozen=True)
class Config:
    """One point of a tunable space: parameter names and values, in the space's order."""

    values: tuple[tuple[str, int | str | bool], ...] = ()

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.values) or "default"

    def as_dict(self) -> dict[str, int | str | bool]:
        """The parameters by name."""
        return dict(self.values)


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """One file on one backend.

    idea       the first line of the file's own words
    supports   name → expression over axes, dtype, scalars: each must hold
    space      tunable parameter → values it may take
    limits     name → expression over axes, dtype, itemsize, scalars and the config: each must hold for a config to be
               tried
    default    the config used when none was tuned
    layouts    which memory layouts the inputs may have (see LAYOUTS)
    flags      extra compiler flags, for native backends
    any_rank   it takes contiguous tensors in their own shapes too, not collapsed: a call then makes no views
    arch       the only target whose instructions it uses ("sm_90a"); "" when it takes any
    inaccurate why what a baseline calls is not right everywhere; "" for all others. It is timed all the same (see
    verdict.Inaccurate); inaccurate_compiled: why that is so of the same file through torch.compile alone
    not_called why dispatch does not take what users call ("" for all others): it answers some calls otherwise than the
               definition, and is timed all the same
    needs      the package that it calls, as pip names it ("liger-kernel==0.8.5"); "" when opforge's own will do
    best       name → expression over axes, dtype, itemsize, scalars: the calls it was made for. It takes others too,
               by another plan or at a loss; dispatch lets times from inside say little of the outside
    """

    name: str
    operator: str
    backend: str
    source: Path
    idea: str
    dtypes: tuple[str, ...] | None = None
    supports: Mapping[str, str] = field(default_factory=dict)
    space: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)
    default: Config = Config()
    layouts: tuple[str, ...] = ("contiguous",)
    flags: tuple[str, ...] = ()
    any_rank: bool = False
    arch: str = ""
    needs: str = ""
    inaccurate: str = ""
    not_called: str = ""
    inaccurate_compiled: str = ""
    deterministic: bool = True
    best: Mapping[str, str] = field(default_factory=dict)

    def accepts(self, axes: Axes, dtype: str, scalars: Mapping[str, ScalarValue]) -> Accepted | Rejected:
        """Whether this implementation takes a call of these axes, dtype and scalars (layouts are the runner's
        business).
        """
        if self.dtypes is not None and dtype not in self.dtypes:
            return Rejected(f"{self.name} takes {', '.join(self.dtypes)}, not {dtype}")
        names = {**axes, **scalars, "dtype": dtype, "itemsize": DTYPES[dtype].itemsize}
        for name, expression in self.supports.items():
            if not evaluate(expression, names):
                return Rejected(f"{name}: {expression} does not hold for {_short(axes)}")
        return Accepted()

    def allows(
        self,
        config: Config,
        axes: Axes,
        dtype: str,
        itemsize: int,
        scalars: Mapping[str, ScalarValue],
        bounds: Mapping[str, int | tuple[str, ...]] | None = None,
    ) -> Accepted | Rejected:
        """Whether a config is worth trying here; the reason names every limit that it breaks.

        bounds   of the device (DeviceSpec.bounds): limits name them; what is not known of it is an H200's
        """
        names = {
            **HOPPER,
            **(bounds or {}),
            **axes,
            **scalars,
            **config.as_dict(),
            "dtype": dtype,
            "itemsize": itemsize,
        }
        broken = [name for name, text in self.limits.items() if not evaluate(text, names)]
        return Rejected(f"not {' nor '.join(broken)}") if broken else Accepted()

    def configs(self) -> Iterator[Config]:
        """Every point of the space, limits not asked."""
        for values in itertools.product(*self.space.values()):
            yield Config(tuple(zip(self.space, values, strict=True)))


def fallback(implementations: Sequence[Implementation]) -> Implementation:
    """What is called where nothing is verified: what a user calls in PyTorch, unless its file says that it is
    inaccurate and there is a DEFINITION.
    """
    torch = [item for item in implementations if item.backend == "torch"]
    return next((item for item in torch if not item.inaccurate), torch[0])


def _short(axes: Axes) -> str:
    return ", ".join(f"{name}={value}" for name, value in axes.items())
