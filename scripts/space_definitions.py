"""Which spaces scripts/spaces.py measures whole, and their points."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from opforge.core.definition.dtypes import DTYPES
from opforge.core.definition.implementation import Config, Implementation
from opforge.registry import load
from opforge.tuning.search import valid_points


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Some points of one implementation: `space` replaces what it declares for these parameters, its limits hold.
    `names`: what its parameters are called in the space, where several implementations share them.
    """

    implementation: str
    space: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A space: the points of its variants on one call. Of several the parameter `kernel` says which. `shape` tells
    spaces of one kernel apart: a search on one may begin with what is known of the other.
    """

    kernel: str
    shape: str
    operator: str
    axes: Mapping[str, Any]
    variants: tuple[Variant, ...]
    dtype: str = "bfloat16"
    scalars: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cuda"
    backend: str = "triton"

    @property
    def name(self) -> str:
        return f"{self.kernel}_{self.shape}"


def _softmax(rows: int, cols: int) -> Wanted:
    threads = (4, 8, 16, 32, 64)
    tiles = tuple(tile for tile in (2048, 4096, 8192, 16384, 32768, 65536) if tile >= cols) or (cols,)
    shared = {"per_thread": "per_thread"}
    return Wanted(
        kernel="softmax_triton",
        shape=f"{rows}x{cols}",
        operator="softmax",
        axes={"lead": (rows,), "cols": cols},
        variants=(
            Variant(
                implementation="triton_onepass",
                space={"tile": tiles, "per_thread": threads},
                names={"tile": "elements", **shared},
            ),
            Variant(
                implementation="triton_online",
                space={
                    "block": tuple(b for b in (1024, 2048, 4096, 8192, 16384, 32768) if b <= cols),
                    "per_thread": threads,
                },
                names={"block": "elements", **shared},
            ),
        ),
    )


def _product(kernel: str, shape: tuple[int, int, int], backend: str, variant: Variant) -> Wanted:
    m, n, k = shape
    return Wanted(
        kernel=kernel,
        shape=f"{m}x{n}x{k}",
        operator="matmul",
        axes={"m": m, "n": n, "k": k},
        variants=(variant,),
        backend=backend,
    )


TILED = Variant(
    implementation="triton_tiled",
    space={"BLOCK_M": (64, 128, 256), "BLOCK_N": (64, 128, 256), "BLOCK_K_BYTES": (64, 128, 256),
           "num_stages": (2, 3, 4), "GROUP": (1, 4, 8)},
)  # fmt: skip
PIPELINED = Variant(
    implementation="triton_pipelined",
    space={"BLOCK_M": (64, 128, 256), "BLOCK_N": (64, 128, 256), "BLOCK_K_BYTES": (64, 128, 256), "GROUP": (8,),
           "num_stages": (2, 3, 4), "PARTS": (1,), "EARLY": (False,)},
)  # fmt: skip
TILELANG = Variant(implementation="tilelang_tiled", space={"panel": (0, 8), "pipelined": (True,)})
HEADS = {"batch": 4, "kv_heads": 16, "group": 1, "queries": 2048, "keys": 2048, "head_dim": 128, "value_dim": 128}
LONG = {"batch": 1, "kv_heads": 16, "group": 1, "queries": 4096, "keys": 4096, "head_dim": 64, "value_dim": 64}


def _attention(shape: str, axes: Mapping[str, int]) -> Wanted:
    return Wanted(
        kernel="attention_triton",
        shape=shape,
        operator="attention",
        axes=axes,
        scalars={"causal": True},
        variants=(Variant(implementation="triton_twoloops"),),
    )


SQUARE, WIDE = (4096, 4096, 4096), (2048, 8192, 2048)
SPACES = (
    _softmax(4096, 65536),
    _softmax(16384, 4096),
    _product("matmul_triton", SQUARE, "triton", TILED),
    _attention("4x16x2048x128", HEADS),
    _product("matmul_triton", WIDE, "triton", TILED),
    _attention("1x16x4096x64", LONG),
    _product("matmul_triton_tma", SQUARE, "triton", PIPELINED),
    _product("matmul_tilelang", SQUARE, "tilelang", TILELANG),
    Wanted(
        kernel="matmul_cpp",
        shape="512x512x512",
        operator="matmul",
        axes={"m": 512, "n": 512, "k": 512},
        dtype="float32",
        device="cpu",
        backend="cpp",
        variants=(Variant(implementation="cpp_blocked", space={"ISA": (0,), "STRIP": (512, 1024)}),),
    ),
)
"""The most wanted first; the second shapes need little compiling beside the first, so they come early."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """config: what the implementation is given; label: what the space calls it."""

    implementation: Implementation
    config: Config
    label: Mapping[str, Any]


def points_of(wanted: Wanted, device: Any) -> list[Point]:
    """The legal points of a space, in its order. device: the descriptor whose limits hold."""
    registry = load()
    scalars = registry.operator(wanted.operator).scalar_values(wanted.scalars)
    found = []
    for variant in wanted.variants:
        declared = registry.implementation(wanted.operator, variant.implementation)
        narrowed = dataclasses.replace(declared, space={**declared.space, **variant.space})
        legal, _ = valid_points(
            narrowed, wanted.axes, wanted.dtype, DTYPES[wanted.dtype].itemsize, scalars, [device]
        )  # fmt: skip
        inside = [
            config for config in legal
            if all(value in narrowed.space.get(name, (value,)) for name, value in config.values)
        ]  # fmt: skip
        for config in inside:
            label = {variant.names.get(name, name): value for name, value in config.values}
            if len(wanted.variants) > 1:
                label = {"kernel": variant.implementation, **label}
            found.append(Point(implementation=declared, config=config, label=label))
    return found
