"""Attention of sequences of any length, packed one after another, for references and bounds: each sequence by itself;
which lengths are drawn; axes and workloads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from opforge.core.definition.operator import Constraint, ScalarValue, Workload
from opforge.core.definition.rounding_errors import Errors
from opforge.core.definition.shapes import AxisValue
from opforge.definitions.attention.attention import PARAMETERS, attended, attention_errors, in_parts
from opforge.definitions.attention.gradients import differentiated, gradient_errors
from opforge.definitions.attention.sides import Sides

VARLEN_NAMES = ("scale", "causal", "window_left", "window_right", "alignment", "softcap")
VARLEN_PARAMETERS = tuple(scalar for scalar in PARAMETERS if scalar.name in VARLEN_NAMES)

VARLEN_CONSTRAINTS = (
    Constraint(name="rows_have_elements", expression="head_dim >= 1 and value_dim >= 1", about="rows have elements"),
    Constraint(
        name="windows_reach_out",
        expression="window_left >= -1 and window_right >= -1",
        about="a window reaches 0 or more keys to a side, or is -1",
    ),
    Constraint(name="softcap_caps", expression="softcap >= 0", about="a cap is above 0, or 0 for none"),
    Constraint(
        name="places_fit_32_bits",
        expression="total_q < 1073741824 and total_k < 1073741824",
        about="offsets are numbers of 32 bits, and so are their differences and windows",
    ),
)

GROWING_FROM = 8192
"""From so many keys on lengths grow evenly, i + 1 parts of all for sequence i, so that a workload's FLOPs follow from
its sizes; smaller calls, those of cases, have empty sequences and a long one.
"""

_SEQUENCES = "max(bounds - 1, 1)"
_PAIRS = f"total_q * total_k * (4 * {_SEQUENCES} + 2) / (3 * {_SEQUENCES} * ({_SEQUENCES} + 1))"
_BAND = (
    "(total_q * (window_left + 1 + (0 if causal else max(window_right, 0))) if window_left >= 0 else total_q * total_k)"
)
FLOPS = f"2 * kv_heads * group * (head_dim + value_dim) * min({_PAIRS} / (2 if causal else 1), {_BAND})"
"""Of lengths that grow evenly, alike for queries and keys."""


def varlen_axes(
    sequences: int,
    total_q: int,
    total_k: int,
    kv_heads: int,
    group: int,
    head_dim: int,
    value_dim: int | None = None,
) -> dict[str, AxisValue]:
    """Axes by name; value_dim is head_dim unless it is given."""
    return {
        "bounds": sequences + 1,
        "total_q": total_q,
        "total_k": total_k,
        "kv_heads": kv_heads,
        "group": group,
        "head_dim": head_dim,
        "value_dim": head_dim if value_dim is None else value_dim,
    }


def lengths_of(inputs: Any) -> dict[str, Any]:
    """The offsets of a case, of those drawn: self-attention, where there are as many keys as queries, has one length
    for both; those of large calls grow evenly.
    """
    offsets = {"cu_seqlens_q": inputs["q"].shape[0], "cu_seqlens_k": inputs["k"].shape[0]}
    if inputs["k"].shape[0] >= GROWING_FROM and inputs["cu_seqlens_q"].shape[0] > 1:
        found = {}
        for name, total in offsets.items():
            place = inputs[name].new_ones(inputs[name].shape[0]).cumsum(0) - 1
            last = inputs[name].shape[0] - 1
            found[name] = place * (place + 1) * total // (last * (last + 1))
        return found
    alike = inputs["q"].shape[0] == inputs["k"].shape[0]
    return {"cu_seqlens_k": inputs["cu_seqlens_q"]} if alike else {}


def sequences_of(cu_seqlens_q: Any, cu_seqlens_k: Any) -> Iterator[tuple[slice, slice]]:
    """The rows of queries and of keys of each sequence."""
    q_ends, k_ends = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for ends in (q_ends, k_ends):
        if ends[:1] != [0] or sorted(ends) != ends:
            raise ValueError(f"offsets begin with 0 and don't decrease, and {ends} do not")
    for place in range(len(q_ends) - 1):
        yield slice(q_ends[place], q_ends[place + 1]), slice(k_ends[place], k_ends[place + 1])


def _plain(scalars: dict[str, Any]) -> dict[str, Any]:
    """The parameters of plain attention."""
    return {scalar.name: scalars.get(scalar.name, scalar.default) for scalar in PARAMETERS}


def _heads_first(rows: Any) -> Any:
    """[rows, heads, dim] as [1, heads, rows, dim]."""
    return rows.transpose(0, 1).unsqueeze(0)


def _each(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any) -> Iterator[tuple[slice, Any, Any, Any]]:
    """Queries, keys and values of each sequence that has both, heads first, and where its queries lie."""
    for rows, columns in sequences_of(cu_seqlens_q, cu_seqlens_k):
        if rows.stop > rows.start and columns.stop > columns.start and q.shape[1]:
            yield rows, _heads_first(q[rows]), _heads_first(k[columns]), _heads_first(v[columns])


def varlen_attended(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, scalars: dict[str, Any]) -> Any:
    """(out [total_q, heads, value_dim], lse [heads, total_q]), one sequence after another."""
    out = q.new_zeros((q.shape[0], q.shape[1], v.shape[2]))
    lse = q.new_full((q.shape[1], q.shape[0]), -math.inf)
    for rows, *tensors in _each(q, k, v, cu_seqlens_q, cu_seqlens_k):
        found = in_parts(attended, *tensors, scalars=_plain(scalars))
        out[rows], lse[:, rows] = found[0][0].transpose(0, 1), found[1][0]
    return out, lse


def varlen_errors(inputs: Any, outputs: Any, scalars: dict[str, Any], dtype: str) -> dict[str, Errors]:
    """Those of attention, sequence by sequence."""
    whole = {name: Errors(*(tensor.new_zeros(tensor.shape) for _ in range(3))) for name, tensor in outputs.items()}
    given = (inputs[name] for name in ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k"))
    for rows, q, k, v in _each(*given):
        results = {"out": _heads_first(outputs["out"][rows]), "lse": outputs["lse"][:, rows].unsqueeze(0)}
        found = attention_errors({"q": q, "k": k, "v": v}, results, _plain(scalars), dtype)
        for kind in ("largest", "typical", "reached"):
            getattr(whole["out"], kind)[rows] = getattr(found["out"], kind)[0].transpose(0, 1)
            getattr(whole["lse"], kind)[:, rows] = getattr(found["lse"], kind)[0]
    return whole


OF_QUERIES, OF_KEYS = ("q", "out", "dout"), ("k", "v")
"""Inputs of the gradients that have a row for each query, and for each key; lse and dlse have a column for each query.
"""


def _each_whole(inputs: Any) -> Iterator[tuple[slice, slice, dict[str, Any]]]:
    """What the gradients of each sequence that has queries and keys are made of, heads first."""
    for rows, columns in sequences_of(inputs["cu_seqlens_q"], inputs["cu_seqlens_k"]):
        if rows.stop > rows.start and columns.stop > columns.start and inputs["q"].shape[1]:
            found = {name: _heads_first(inputs[name][rows]) for name in OF_QUERIES}
            found |= {name: _heads_first(inputs[name][columns]) for name in OF_KEYS}
            found |= {name: inputs[name][:, rows].unsqueeze(0).to(inputs["q"]) for name in ("lse", "dlse")}
            yield rows, columns, found


def varlen_differentiated(inputs: Any, scalars: dict[str, Any]) -> tuple[Any, Any, Any]:
    """(dq, dk, dv), of what packed attention returned and what arrives for both of its results. Sequence by sequence;
    a key that no query of its sequence sees has a gradient of 0.
    """
    found = tuple(inputs[name].new_zeros(inputs[name].shape) for name in ("q", "k", "v"))
    names = ("q", "k", "v", "out", "lse", "dout", "dlse")
    for rows, columns, given in _each_whole(inputs):
        q, k, v, out, lse, dout, dlse = (given[name] for name in names)
        pieces = differentiated(q, k, v, out, lse, dout, dlse, Sides.of(q, {}), _plain(scalars))
        for whole, place, piece in zip(found, (rows, columns, columns), pieces, strict=True):
            whole[place] = piece[0].transpose(0, 1)
    return found


def varlen_gradient_errors(inputs: Any, scalars: dict[str, Any], dtype: str) -> dict[str, Errors]:
    """Those of attention's gradients, sequence by sequence."""
    places = {"dq": "q", "dk": "k", "dv": "v"}
    whole = {name: [inputs[of].new_zeros(inputs[of].shape) for _ in range(3)] for name, of in places.items()}
    for rows, columns, given in _each_whole(inputs):
        found = gradient_errors(given, _plain(scalars), dtype)
        for name, parts in whole.items():
            for part, kind in zip(parts, ("largest", "typical", "reached"), strict=True):
                own = getattr(found[name], kind)[0].transpose(0, 1)
                part[rows if name == "dq" else columns] = own
    return {name: Errors(*parts) for name, parts in whole.items()}


_CAUSAL: dict[str, ScalarValue] = {"causal": True}

VARLEN_WORKLOADS = (
    Workload(
        name="bert_8",
        axes=varlen_axes(8, 1024, 1024, 12, 1, 64),
        scale="laptop",
        source="BERT base: 12 heads of 64, 8 sequences of 1024 tokens in all, unpadded",
    ),
    Workload(
        name="llama3_gqa_4",
        axes=varlen_axes(4, 1024, 1024, 2, 4, 128),
        scalars=_CAUSAL,
        scale="laptop",
        source="Llama 3 8B: a quarter of its heads, 4 sequences of 1024 tokens in all",
    ),
    Workload(
        name="llama3_packed_16",
        axes=varlen_axes(16, 16384, 16384, 8, 4, 128),
        scalars=_CAUSAL,
        source="Llama 3 8B, fine-tuning: 16 sequences packed into 16384 tokens",
    ),
    Workload(
        name="bert_large_64",
        axes=varlen_axes(64, 32768, 32768, 16, 1, 64),
        source="BERT large: 16 heads of 64, 64 sequences unpadded, 32768 tokens",
    ),
    Workload(
        name="mistral_packed_8_window",
        axes=varlen_axes(8, 65536, 65536, 8, 4, 128),
        scalars={"causal": True, "window_left": 4095},
        source="Mistral 7B: window of 4096, 8 sequences packed into 65536 tokens",
    ),
    Workload(
        name="chunked_prefill_32",
        axes=varlen_axes(32, 8192, 131072, 8, 4, 128),
        scalars={"causal": True, "alignment": "bottom_right"},
        source="Llama 3 8B, serving: chunks of 32 prompts, 8192 queries against 131072 keys",
    ),
)
