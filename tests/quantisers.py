"""Ten quantisers as their users define them, with honest float32 kernels of each, and dishonest ones.

Every honest kernel computes in float32 on a CPU, in another order or by another formula than the definition.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from opforge.core.definition.operator import Case, Operator, TensorSpec, Tolerance

FP8 = torch.float8_e4m3fn


@dataclasses.dataclass(frozen=True)
class Quantiser:
    """A definition; `honest` and `planted` take the inputs in their dtype and return what a kernel would store."""

    operator: Operator
    honest: dict[str, Callable[..., Any]]
    planted: dict[str, Callable[..., Any]]


def operator(name: str, reference: Any, outputs: tuple[TensorSpec, ...], **more: Any) -> Operator:
    return Operator(
        name=name,
        about="",
        inputs=more.pop("inputs", (TensorSpec(name="x", shape="rows cols"),)),
        outputs=outputs,
        reference=reference,
        flops="rows * cols",
        tolerance=Tolerance(about="one division"),
        cases=(Case(name="few", axes={"rows": 8, "cols": 128}, why="plain"),),
        differentiable=(),
        **more,
    )


def spec(name: str, shape: str, dtype: str, **more: Any) -> TensorSpec:
    return TensorSpec(name=name, shape=shape, dtype=dtype, **more)


def amax(x: Any) -> Any:
    return x.abs().amax(-1, keepdim=True).clamp(min=1e-20)


def half_up(v: Any) -> Any:
    return torch.floor(v + 0.5)


def away(v: Any) -> Any:
    return v.sign() * torch.floor(v.abs() + 0.5)


def twice(v: Any) -> Any:
    """Rounded to bfloat16 first."""
    return torch.round(v.to(torch.bfloat16).float())


# 1, 2: a scale a row, by division; half even and half up
def per_row(rule: Any) -> Any:
    def reference(x: Any) -> Any:
        scale = amax(x) / 127.0
        return rule(x / scale).to(torch.int8), scale[..., 0]

    return reference


def per_row_kernel(rule: Any, by: str, most: float = 127.0, factor: float = 1.0) -> Any:
    def run(x: Any) -> Any:
        x = x.float()
        scale = amax(x) / most * factor
        v = x / scale if by == "division" else x * (1 / scale) if by == "reciprocal" else x * (most / amax(x)) / factor
        return rule(v).clamp(-128, 127).to(torch.int8), (amax(x) / 127.0)[..., 0]

    return run


ROW = (spec("q", "rows cols", "int8"), spec("scale", "rows", "float32"))
ROWS_HONEST = {
    f"{words}, {by}": per_row_kernel(rule, by)
    for words, rule in (("half even", torch.round), ("half up", half_up), ("away", away))
    for by in ("division", "reciprocal", "product")
}
ROWS_PLANTED = {
    "truncated": per_row_kernel(torch.trunc, "division"),
    "floored": per_row_kernel(torch.floor, "division"),
    "a scale of 128": per_row_kernel(torch.round, "division", most=128.0),
    "a scale of 1.001": per_row_kernel(torch.round, "division", factor=1.001),
    "rounded twice": per_row_kernel(twice, "division"),
}


# 3: saturating, by one scale that is given
def saturating(x: Any, s: Any) -> Any:
    return torch.clamp(torch.round(x / s), -128, 127).to(torch.int8)


# 4: asymmetric, with a zero point, in uint8
def asymmetric(x: Any) -> Any:
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    scale = ((high - low) / 255).clamp(min=1e-20)
    zero = torch.round(-low / scale)
    return torch.clamp(torch.round(x / scale) + zero, 0, 255).to(torch.uint8)


def asymmetric_kernel(rule: Any, most: float = 255.0) -> Any:
    def run(x: Any) -> Any:
        x = x.float()
        low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
        inverse = 1 / ((high - low) * (1 / most)).clamp(min=1e-20)
        return torch.clamp(rule(x * inverse) + rule(-low * inverse), 0, 255).to(torch.uint8)

    return run


# 5: int4 in groups of 32, two in a byte
def packed(x: Any) -> Any:
    groups = x.reshape(x.shape[0], -1, 32)
    q = torch.clamp(torch.round(groups / (amax(groups) / 7.0)), -8, 7).to(torch.int32).reshape(x.shape) & 15
    return (q[:, 0::2] | (q[:, 1::2] << 4)).to(torch.uint8)


def packed_kernel(rule: Any, most: float = 7.0) -> Any:
    def run(x: Any) -> Any:
        groups = x.float().reshape(x.shape[0], -1, 32)
        q = torch.clamp(rule(groups * (most / amax(groups))), -8, 7).to(torch.int64).reshape(x.shape) & 15
        return (q[:, 0::2] + 16 * q[:, 1::2]).to(torch.uint8)

    return run


# 6: blocks of 128 in int8, the whole reciprocal
def in_groups(x: Any) -> Any:
    groups = x.reshape(x.shape[0], -1, 128)
    return torch.round(groups * (127.0 / amax(groups))).to(torch.int8).reshape(x.shape)


def in_groups_kernel(rule: Any, most: float = 127.0) -> Any:
    def run(x: Any) -> Any:
        groups = x.float().reshape(x.shape[0], -1, 128)
        return rule(groups / (amax(groups) / most)).clamp(-128, 127).to(torch.int8).reshape(x.shape)

    return run


# 7: RMS norm, then int8: the statistic is a sum
def norm_first(x: Any) -> Any:
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    return torch.round(y / (amax(y) / 127.0)).to(torch.int8)


def norm_first_kernel(rule: Any, most: float = 127.0) -> Any:
    def run(x: Any) -> Any:
        x = x.float()
        y = x / torch.sqrt((x * x).sum(-1, keepdim=True) / x.shape[-1] + 1e-6)
        return rule(y * (most / amax(y))).clamp(-128, 127).to(torch.int8)

    return run


# 8, 9: FP8 with a scale a row: stored by the operator, or rounded by the reference itself
def fp8(convert: bool) -> Any:
    def reference(x: Any) -> Any:
        scale = amax(x) / 448.0
        y = (x / scale).clamp(-448.0, 448.0)
        return (y.to(FP8) if convert else y), scale[..., 0]

    return reference


def fp8_kernel(by: str, through: Any = None, factor: float = 1.0) -> Any:
    def run(x: Any) -> Any:
        x = x.float()
        scale = amax(x) / 448.0
        v = x / (scale * factor) if by == "division" else x * (448.0 / amax(x))
        v = v.clamp(-448.0, 448.0)
        return (v if through is None else through(v)).to(FP8), scale[..., 0]

    return run


def toward_zero(v: Any) -> Any:
    """Cut to the three bits that FP8 keeps, so that storing rounds no more."""
    return (v.view(torch.int32) & ~0xFFFFF).view(torch.float32)


FP8_HONEST = {"division": fp8_kernel("division"), "product": fp8_kernel("product")}
FP8_PLANTED = {
    "truncated": fp8_kernel("division", toward_zero),
    "rounded twice": fp8_kernel("division", lambda v: v.to(torch.bfloat16).float()),
    "a scale of 1.01": fp8_kernel("division", factor=1.01),
}


# 10: quantised and multiplied back, in float32: a step of the grid is many digits of the result
def dequantised(x: Any) -> Any:
    scale = amax(x) / 127.0
    return torch.round(x / scale) * scale


def dequantised_kernel(rule: Any, factor: float = 1.0) -> Any:
    def run(x: Any) -> Any:
        x = x.float()
        scale = amax(x) / 127.0 * factor
        return rule(x * (1 / scale)) * scale

    return run


def rules(kernel: Any) -> dict[str, Any]:
    return {"half even": kernel(torch.round), "half up": kernel(half_up), "away": kernel(away)}


def wrong(kernel: Any, scale: Any) -> dict[str, Any]:
    return {"truncated": kernel(torch.trunc), "rounded twice": kernel(twice), "a wrong scale": scale}


QUANTISERS = (
    Quantiser(operator("rows_even", per_row(torch.round), ROW), ROWS_HONEST, ROWS_PLANTED),
    Quantiser(operator("rows_up", per_row(half_up), ROW), ROWS_HONEST, ROWS_PLANTED),
    Quantiser(
        operator(
            "saturating",
            saturating,
            (spec("q", "rows cols", "int8"),),
            inputs=(
                TensorSpec(name="x", shape="rows cols"),
                TensorSpec(name="s", shape="rows one", dtype="float32", domain="positive"),
            ),
            derived={"one": "1"},
        ),
        {
            "half even": lambda x, s: torch.clamp(torch.round(x.float() / s), -128, 127).to(torch.int8),
            "half up": lambda x, s: torch.clamp(half_up(x.float() * (1 / s)), -128, 127).to(torch.int8),
        },
        {
            "a wrong scale": lambda x, s: torch.clamp(torch.round(x.float() / (s * 1.01)), -128, 127).to(torch.int8),
            "truncated": lambda x, s: torch.clamp(x.float() / s, -128, 127).to(torch.int8),
        },
    ),
    Quantiser(
        operator("asymmetric", asymmetric, (spec("q", "rows cols", "uint8"),)),
        rules(asymmetric_kernel),
        wrong(asymmetric_kernel, asymmetric_kernel(torch.round, 254.0)),
    ),
    Quantiser(
        operator("packed", packed, (spec("q", "rows bytes", "uint8"),), derived={"bytes": "cols // 2"}),
        rules(packed_kernel),
        wrong(packed_kernel, packed_kernel(torch.round, 8.0)),
    ),
    Quantiser(
        operator("groups", in_groups, (spec("q", "rows cols", "int8"),)),
        rules(in_groups_kernel),
        wrong(in_groups_kernel, in_groups_kernel(torch.round, 126.0)),
    ),
    Quantiser(
        operator("norm_first", norm_first, (spec("q", "rows cols", "int8"),)),
        rules(norm_first_kernel),
        wrong(norm_first_kernel, norm_first_kernel(torch.round, 126.0)),
    ),
    Quantiser(operator("fp8", fp8(False), (spec("q", "rows cols", "float8_e4m3fn"), ROW[1])), FP8_HONEST, FP8_PLANTED),
    Quantiser(
        operator("fp8_converted", fp8(True), (spec("q", "rows cols", "float8_e4m3fn"), ROW[1])), FP8_HONEST, FP8_PLANTED
    ),
    Quantiser(
        operator("dequantised", dequantised, (spec("y", "rows cols", "float32"),)),
        rules(dequantised_kernel),
        wrong(dequantised_kernel, dequantised_kernel(torch.round, 1.001)),
    ),
)
