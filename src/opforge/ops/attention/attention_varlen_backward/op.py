"""The gradients of attention of packed sequences: of queries, keys and values, from what it returned and what came."""

from opforge.core.operator import Case, Law, Operator, TensorSpec, Tolerance
from opforge.definitions.attention.varlen import (
    FLOPS,
    VARLEN_CONSTRAINTS,
    VARLEN_PARAMETERS,
    VARLEN_WORKLOADS,
    lengths_of,
    varlen_attended,
    varlen_axes,
    varlen_differentiated,
    varlen_gradient_errors,
)

NAMES = ("q", "k", "v", "out", "lse", "dout", "dlse", "cu_seqlens_q", "cu_seqlens_k")


def reference(*tensors, **scalars):
    return varlen_differentiated(dict(zip(NAMES, tensors, strict=True)), scalars)


def follows(inputs, scalars):
    offsets = lengths_of(inputs)
    given = {**inputs, **offsets}
    out, lse = varlen_attended(*(given[name] for name in (*NAMES[:3], *NAMES[7:])), scalars)
    return {**offsets, "out": out, "lse": lse}


def errors(inputs, outputs, scalars, dtype):
    return varlen_gradient_errors(inputs, scalars, dtype)


def lonely_tokens_have_none(inputs, outputs, scalars):
    # a key of a sequence without queries, and a query of one without keys, move nothing
    queries, keys = inputs["cu_seqlens_q"].diff(), inputs["cu_seqlens_k"].diff()
    of_keys, of_queries = (queries == 0).repeat_interleave(keys), (keys == 0).repeat_interleave(queries)
    for name, lonely in (("dk", of_keys), ("dv", of_keys), ("dq", of_queries)):
        if (outputs[name][lonely] != 0).any():
            return f"{name} of a token whose sequence has no other side is not 0"
    return None


CAUSAL = {"causal": True}
BOTTOM = {"causal": True, "alignment": "bottom_right"}

operator = Operator(
    name="attention_varlen_backward",
    about="the gradients of attention of packed sequences with respect to queries, keys and values",
    source="Dao, FlashAttention-2, arXiv:2307.08691, 2023, section 3.1: weights are made again from the log-sum-exp",
    inputs=(
        TensorSpec(name="q", shape="total_q kv_heads*group head_dim"),
        TensorSpec(name="k", shape="total_k kv_heads head_dim", about="head h of q reads head h // group of k and v"),
        TensorSpec(name="v", shape="total_k kv_heads value_dim"),
        TensorSpec(name="out", shape="total_q kv_heads*group value_dim", about="what attention_varlen returned"),
        TensorSpec(
            name="lse", shape="kv_heads*group total_q", dtype="float32", about="its log-sum-exp; -inf hides a row"
        ),
        TensorSpec(name="dout", shape="total_q kv_heads*group value_dim", about="the gradient of out"),
        TensorSpec(name="dlse", shape="kv_heads*group total_q", dtype="float32", about="the gradient of lse"),
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
        TensorSpec(name="dq", shape="total_q kv_heads*group head_dim"),
        TensorSpec(name="dk", shape="total_k kv_heads head_dim"),
        TensorSpec(name="dv", shape="total_k kv_heads value_dim"),
    ),
    scalars=VARLEN_PARAMETERS,
    constraints=VARLEN_CONSTRAINTS,
    reference=reference,
    follows=follows,
    flops=f"({FLOPS}) * (3 * head_dim + 2 * value_dim) / (head_dim + value_dim)",
    unit="matrix",
    tolerance=Tolerance(
        errors=errors,
        shared="head_dim",
        rounds_factors=True,
        about="as attention_backward, sequence by sequence",
    ),
    laws=(
        Law(
            name="lonely_tokens_have_none",
            about="a token whose sequence lacks the other side has a gradient of 0",
            holds=lonely_tokens_have_none,
        ),
    ),
    cases=(
        Case(name="self_attention", axes=varlen_axes(6, 150, 150, 2, 1, 64), why="one length for both sides, some 0"),
        Case(name="causal", axes=varlen_axes(5, 170, 170, 1, 2, 32), scalars=CAUSAL, why="each sequence begins anew"),
        Case(
            name="lengths_apart",
            axes=varlen_axes(6, 120, 190, 1, 2, 32),
            why="queries without keys, keys without queries: gradients of 0, though outputs start as NaN",
        ),
        Case(name="top_left", axes=varlen_axes(5, 140, 180, 1, 2, 32), scalars=CAUSAL, why="keys that none sees"),
        Case(
            name="bottom_right",
            axes=varlen_axes(5, 140, 180, 1, 2, 32),
            scalars=BOTTOM,
            why="queries that stand before all keys: lse is -inf, and their gradients are 0",
        ),
        Case(name="one_sequence", axes=varlen_axes(1, 129, 129, 1, 1, 64), scalars=CAUSAL, why="129 % 128 = 1"),
        Case(name="many_short", axes=varlen_axes(40, 90, 90, 1, 2, 16), why="most blocks are nearly empty"),
        Case(
            name="window_both_ways",
            axes=varlen_axes(4, 150, 170, 2, 1, 32),
            scalars={"window_left": 3, "window_right": 40, "alignment": "bottom_right"},
            why="keys of the next sequence lie inside the window, and get nothing",
        ),
        Case(
            name="softcap",
            axes=varlen_axes(4, 90, 110, 1, 2, 64),
            scalars={"softcap": 2.0, "causal": True},
            why="the derivative of a tanh that bends most scores",
        ),
        Case(name="gqa", axes=varlen_axes(3, 80, 80, 2, 4, 128), scalars=CAUSAL, why="four heads add up in dk and dv"),
        Case(name="two_dims", axes=varlen_axes(3, 60, 80, 1, 2, 192, 128), scalars=BOTTOM, why="DeepSeek's dims"),
        Case(name="odd_dims", axes=varlen_axes(4, 75, 105, 1, 3, 33, 17), why="rows that no vector divides"),
        Case(name="no_sequence", axes=varlen_axes(0, 0, 0, 2, 1, 16), why="nothing to do"),
        Case(name="no_keys", axes=varlen_axes(3, 40, 0, 2, 1, 16), why="dq is 0 and must be written"),
        Case(name="no_queries", axes=varlen_axes(3, 0, 40, 2, 1, 16), why="dk and dv are 0 and must be written"),
        Case(
            name="sliced",
            axes=varlen_axes(4, 70, 90, 2, 2, 32),
            layout="sliced",
            scalars=CAUSAL,
            why="rows inside a wider tensor",
        ),
        Case(name="transposed", axes=varlen_axes(4, 70, 90, 2, 1, 32), layout="transposed", why="dims lie apart"),
    ),
    workloads=VARLEN_WORKLOADS,
    implementations=("cuda_mma", "triton_twokernels", "torch_definition"),
)
