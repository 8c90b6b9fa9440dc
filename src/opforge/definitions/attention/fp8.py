"""Attention of FP8 tensors with scales, for references and bounds: what a scale serves, parameters, axes, workloads; on
whatever has the methods of a tensor, so no library is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from opforge.core.definition.operator import Constraint, Scalar, ScalarValue, Workload
from opforge.core.definition.rounding_errors import Errors
from opforge.definitions.attention.attention import (
    CONSTRAINTS,
    PARAMETERS,
    attended,
    attention_errors,
    in_parts,
    scale_of,
)
from opforge.definitions.attention.cases import WORKLOADS
from opforge.definitions.attention.sides import LIMITS_OF_DROPOUT, Sides
from opforge.definitions.bounds.sums import few_ulps

FORMATS = ("float8_e4m3fn", "float8_e5m2")

PARAMETERS_FP8 = (
    *(scalar for scalar in PARAMETERS if scalar.name not in ("dropout", "seed", "offset")),
    Scalar(name="q_block", default=0, about="rows of q that share a scale; 0: all of a head"),
    Scalar(name="k_block", default=0, about="rows of k that share a scale; 0: all of a head"),
    Scalar(
        name="v_channels",
        default=False,
        choices=(False, True),
        about="whether each column of v has a scale, or a head one",
    ),
    Scalar(name="out_dtype", default="bfloat16", choices=("bfloat16", "float16"), about="the format of out"),
)

CONSTRAINTS_FP8 = (
    *(constraint for constraint in CONSTRAINTS if constraint not in LIMITS_OF_DROPOUT),
    Constraint(
        name="blocks_of_rows",
        expression="q_block >= 0 and k_block >= 0",
        about="a scale serves 1 or more rows, or with 0 all of a head",
    ),
)

DERIVED = {
    "q_blocks": "cdiv(queries, q_block) if q_block > 0 else 1",
    "k_blocks": "cdiv(keys, k_block) if k_block > 0 else 1",
    "v_columns": "value_dim if v_channels else 1",
}


def _plain(scalars: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of plain attention."""
    return {scalar.name: scalars.get(scalar.name, scalar.default) for scalar in PARAMETERS}


def by_rows(tensor: Any, scale: Any, rows: int) -> Any:
    """[batch, heads, length, dim] times the scales [batch, heads, blocks] of so many rows each; 0: of all."""
    if rows:
        scale = scale.repeat_interleave(rows, dim=2)[:, :, : tensor.shape[2]]
    return tensor * scale.unsqueeze(-1)


def dequantised(tensors: Sequence[Any], scalars: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """What q, k and v stand for, of these three and their scales."""
    q, k, v, q_scale, k_scale, v_scale = tensors
    rows = by_rows(q, q_scale, scalars["q_block"]), by_rows(k, k_scale, scalars["k_block"])
    return *rows, v * v_scale.unsqueeze(-2)


def attended_fp8(
    q: Any, k: Any, v: Any, q_scale: Any, k_scale: Any, v_scale: Any, key_lengths: Any, scalars: Mapping[str, Any]
) -> tuple[Any, ...]:
    """(out, lse)."""
    wide = dequantised((q, k, v, q_scale, k_scale, v_scale), scalars)
    sides = Sides.of(q, {"key_lengths": key_lengths})
    return tuple(in_parts(attended, *wide, sides=sides, scalars=_plain(scalars)))


def fp8_errors(inputs: Any, outputs: Any, scalars: Mapping[str, Any], dtype: str) -> dict[str, Errors]:
    """Those of attention of the dequantised tensors, where products are FP8's (definitions.bounds.fp8). The scales of q
    and k are multiplied before they meet a product: that may leave float32 by itself. Out is multiplied by that of v.
    """
    tensors = [inputs[name] for name in ("q", "k", "v", "q_scale", "k_scale", "v_scale")]
    q, k, v = dequantised(tensors, scalars)
    given = {"q": q, "k": k, "v": v, "key_lengths": inputs.get("key_lengths")}
    plain = _plain(scalars)
    found = attention_errors(given, outputs, plain, dtype)
    if not outputs["out"].numel():
        return found
    most = inputs["q_scale"].amax() * inputs["k_scale"].amax() * (4 * abs(scale_of(inputs["q"], plain)))
    made = {name: replace(errors, reached=errors.reached.maximum(most)) for name, errors in found.items()}
    return {"out": made["out"] + few_ulps(outputs["out"].abs(), 2.0, 0.7), "lse": made["lse"]}


def _workloads() -> tuple[Workload, ...]:
    """Those of attention, with a scale for each head; the long ones with scales of 128 rows too."""
    known = {scalar.name for scalar in PARAMETERS_FP8}
    absent: dict[str, ScalarValue] = {"has_key_lengths": False}
    found = []
    for workload in WORKLOADS:
        scalars = {**absent, **{name: value for name, value in workload.scalars.items() if name in known}}
        found.append(replace(workload, scalars=scalars))
        if workload.name in ("b4_h16_n4096_d128", "b1_h16_n16384_d128", "b1_h16_n16384_d128_causal"):
            blocks = {**scalars, "q_block": 128, "k_block": 128}
            source = f"{workload.source}, scales of 128 rows"
            found.append(replace(workload, name=f"{workload.name}_blocks", scalars=blocks, source=source))
    return tuple(found)


WORKLOADS_FP8 = _workloads()
