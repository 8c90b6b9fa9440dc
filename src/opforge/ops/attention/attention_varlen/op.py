"""Attention of sequences of any length, packed one after another: no padding, and none sees another's keys."""

from opforge.core.operator import Case, Law, Operator, TensorSpec, Tolerance
from opforge.definitions.attention.varlen import (
    FLOPS,
    VARLEN_CONSTRAINTS,
    VARLEN_PARAMETERS,
    VARLEN_WORKLOADS,
    lengths_of,
    varlen_attended,
    varlen_axes,
    varlen_errors,
)


def reference(q, k, v, cu_seqlens_q, cu_seqlens_k, **scalars):
    return varlen_attended(q, k, v, cu_seqlens_q, cu_seqlens_k, scalars)


def errors(inputs, outputs, scalars, dtype):
    return varlen_errors(inputs, outputs, scalars, dtype)


def follows(inputs, scalars):
    return lengths_of(inputs)


def blind_rows_are_empty(inputs, outputs, scalars):
    # a row has a log-sum-exp of -inf where it sees nothing, and nowhere else; then it is 0
    blind = (outputs["lse"] == -float("inf")).transpose(0, 1)
    if (outputs["out"][blind] != 0).any():
        return "a row whose log-sum-exp is -inf is not 0"
    keys, queries = inputs["cu_seqlens_k"].diff(), inputs["cu_seqlens_q"].diff()
    without = (keys == 0).repeat_interleave(queries)
    return None if blind[without].all() else "a query of a sequence without keys has a log-sum-exp"


CAUSAL = {"causal": True}
BOTTOM = {"causal": True, "alignment": "bottom_right"}

operator = Operator(
    name="attention_varlen",
    about="attention of sequences of any length, packed one after another, and its log-sum-exp",
    source="Dao, FlashAttention-2, arXiv:2307.08691; the packed form of flash_attn_varlen_func",
    inputs=(
        TensorSpec(name="q", shape="total_q kv_heads*group head_dim"),
        TensorSpec(name="k", shape="total_k kv_heads head_dim", about="head h of q reads head h // group of k and v"),
        TensorSpec(name="v", shape="total_k kv_heads value_dim"),
        TensorSpec(
            name="cu_seqlens_q",
            shape="bounds",
            dtype="int32",
            offsets="total_q",
            about="sequence b has queries cu_seqlens_q[b] up to b + 1; any of them may be empty",
        ),
        TensorSpec(
            name="cu_seqlens_k",
            shape="bounds",
            dtype="int32",
            offsets="total_k",
            about="and keys cu_seqlens_k[b] up to b + 1",
        ),
    ),
    outputs=(
        TensorSpec(name="out", shape="total_q kv_heads*group value_dim"),
        TensorSpec(
            name="lse",
            shape="kv_heads*group total_q",
            dtype="float32",
            about="the natural logarithm of the sum of exp(score); -inf where a query sees nothing",
        ),
    ),
    scalars=VARLEN_PARAMETERS,
    constraints=VARLEN_CONSTRAINTS,
    reference=reference,
    follows=follows,
    flops=FLOPS,
    unit="matrix",
    tolerance=Tolerance(
        errors=errors,
        # where scores are small, the queries that share a head of keys average the same values with the same weights
        shared="group * cdiv(total_q, max(bounds - 1, 1))",
        about="scores and sums in float32; weights may be rounded to the dtype before they meet v",
    ),
    laws=(Law(name="blind_rows_are_empty", about="who sees nothing gives 0 and -inf", holds=blind_rows_are_empty),),
    cases=(
        Case(
            name="self_attention",
            axes=varlen_axes(6, 200, 200, 2, 1, 64),
            why="one length for queries and keys, some 0",
        ),
        Case(name="causal", axes=varlen_axes(7, 230, 230, 1, 2, 32), scalars=CAUSAL, why="each sequence begins anew"),
        Case(
            name="lengths_apart",
            axes=varlen_axes(6, 150, 260, 1, 2, 32),
            why="queries without keys, keys without queries",
        ),
        Case(
            name="top_left",
            axes=varlen_axes(6, 180, 240, 1, 2, 32),
            scalars=CAUSAL,
            why="more keys than queries, and fewer: query 0 stands at key 0",
        ),
        Case(
            name="bottom_right",
            axes=varlen_axes(6, 180, 240, 1, 2, 32),
            scalars=BOTTOM,
            why="the last query of each sequence stands at its last key; some stand before all",
        ),
        Case(
            name="one_sequence",
            axes=varlen_axes(1, 129, 129, 1, 1, 64),
            scalars=CAUSAL,
            why="nothing to pack; 129 % 128 = 1",
        ),
        Case(name="many_short", axes=varlen_axes(70, 90, 90, 1, 2, 16), why="most blocks of queries are nearly empty"),
        Case(name="one_token_each", axes=varlen_axes(33, 33, 200, 1, 4, 32), scalars=BOTTOM, why="decoding, packed"),
        Case(
            name="left_window",
            axes=varlen_axes(4, 260, 260, 1, 2, 32),
            scalars={"causal": True, "window_left": 37},
            why="a window ends inside blocks, and at a sequence's first key",
        ),
        Case(
            name="window_both_ways",
            axes=varlen_axes(5, 190, 230, 2, 1, 32),
            scalars={"window_left": 3, "window_right": 40, "alignment": "bottom_right"},
            why="keys of the next sequence lie inside the window, and are not seen",
        ),
        Case(
            name="softcap",
            axes=varlen_axes(4, 100, 130, 1, 2, 64),
            scalars={"softcap": 2.0, "causal": True},
            why="Gemma 2's cap, low enough to bend most scores",
        ),
        Case(name="wide_scale", axes=varlen_axes(4, 90, 120, 1, 2, 32), scalars={"scale": 3.0}, why="sharp rows"),
        Case(name="gqa", axes=varlen_axes(3, 90, 90, 2, 4, 128), scalars=CAUSAL, why="Llama 3's groups of 4"),
        Case(name="mqa", axes=varlen_axes(3, 70, 110, 1, 6, 64), why="all heads share keys"),
        Case(
            name="two_dims", axes=varlen_axes(3, 80, 100, 1, 2, 192, 128), scalars=BOTTOM, why="DeepSeek's 192 and 128"
        ),
        Case(name="odd_dims", axes=varlen_axes(4, 75, 105, 1, 3, 33, 17), why="rows that no vector divides"),
        Case(name="tiny", axes=varlen_axes(3, 80, 80, 1, 2, 32), distribution="tiny", why="all weights are alike"),
        Case(name="zeros", axes=varlen_axes(3, 80, 90, 1, 1, 32), distribution="zeros", why="lse is log(keys)"),
        Case(name="no_sequence", axes=varlen_axes(0, 0, 0, 2, 1, 16), why="nothing to do"),
        Case(name="no_keys", axes=varlen_axes(3, 40, 0, 2, 1, 16), why="zeros and -inf must be written"),
        Case(name="no_queries", axes=varlen_axes(3, 0, 40, 2, 1, 16), why="nothing to write"),
        Case(
            name="sliced",
            axes=varlen_axes(4, 90, 110, 2, 2, 32),
            layout="sliced",
            scalars=CAUSAL,
            why="rows inside a wider tensor",
        ),
        Case(
            name="transposed", axes=varlen_axes(4, 90, 110, 2, 1, 32), layout="transposed", why="dimensions lie apart"
        ),
        Case(
            name="misaligned",
            axes=varlen_axes(3, 100, 100, 2, 1, 64),
            layout="misaligned",
            why="no vector load is aligned",
        ),
    ),
    workloads=VARLEN_WORKLOADS,
    gradient="attention_varlen_backward",
    implementations=("triton_varlen", "cpp_blocked", "torch_eager", "torch_definition"),
)
