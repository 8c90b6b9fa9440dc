"""The gradient of attention's sinks, from what attention returned and what arrives for that."""

from opforge.core.operator import Case, Operator, TensorSpec, Tolerance, Workload
from opforge.definitions.attention.gradients import sinks_differentiated, sinks_errors


def reference(out, lse, dout, dlse, sinks):
    return sinks_differentiated(out, lse, dout, dlse, sinks)


def follows(inputs, scalars):
    # a row's sum has its sink in it: what is drawn for lse stands for its keys
    keys, sinks = inputs["lse"], inputs["sinks"].reshape(-1, 1)
    top = keys.maximum(sinks)
    return {"lse": top + ((keys - top).exp() + (sinks - top).exp()).log()}


def errors(inputs, outputs, scalars, dtype):
    return sinks_errors(inputs)


def axes(batch, heads, queries, value_dim):
    return {"batch": batch, "heads": heads, "queries": queries, "value_dim": value_dim}


operator = Operator(
    name="attention_sinks_backward",
    about="the gradient of attention's sinks: the scores of each head that join its rows' sums and have no value",
    source="gpt-oss (OpenAI 2025), attention sinks; the gradient is that of a softmax whose last value is 0",
    inputs=(
        TensorSpec(name="out", shape="batch heads queries value_dim", about="what attention returned"),
        TensorSpec(
            name="lse", shape="batch heads queries", dtype="float32", about="its log-sum-exp, in which the sink is"
        ),
        TensorSpec(name="dout", shape="batch heads queries value_dim", about="the gradient of out"),
        TensorSpec(name="dlse", shape="batch heads queries", dtype="float32", about="the gradient of lse"),
        TensorSpec(name="sinks", shape="heads", dtype="float32", about="what attention was given; -inf: no sink"),
    ),
    outputs=(TensorSpec(name="dsinks", shape="heads", dtype="float32"),),
    reference=reference,
    follows=follows,
    carried=("key_lengths", "bias", "mask", "alibi_slopes"),
    flops="batch * heads * queries * (2 * value_dim + 4)",
    tolerance=Tolerance(
        errors=errors,
        about="exp within a few units of its last place; a head's sum shared by at least 32 accumulators",
    ),
    cases=(
        Case(name="one_block", axes=axes(1, 2, 64, 64), why="whole blocks of rows"),
        Case(name="one_row", axes=axes(1, 3, 1, 64), why="the sum has one term"),
        Case(name="gpt_oss", axes=axes(2, 8, 129, 64), why="its head dimension; one past two blocks"),
        Case(name="odd", axes=axes(3, 1, 77, 33), why="rows that no vector divides"),
        Case(name="one_value", axes=axes(2, 2, 50, 1), why="the narrowest rows"),
        Case(name="wide", axes=axes(1, 2, 40, 256), why="Gemma's 256"),
        Case(name="long", axes=axes(1, 1, 5003, 8), why="many rows for one element"),
        Case(name="many_entries", axes=axes(41, 2, 3, 16), why="a head's rows lie far apart"),
        Case(name="large", axes=axes(1, 2, 70, 32), distribution="large", why="shares of 0 and of 1"),
        Case(name="tiny", axes=axes(1, 2, 70, 32), distribution="tiny", why="every share is a half; small sums"),
        Case(name="zeros", axes=axes(1, 2, 70, 32), distribution="zeros", why="nothing arrives: 0"),
        Case(name="no_batch", axes=axes(0, 2, 9, 16), why="sums of nothing are 0, though outputs start as NaN"),
        Case(name="no_queries", axes=axes(2, 3, 0, 16), why="the same"),
        Case(name="transposed", axes=axes(2, 3, 70, 32), layout="transposed", why="queries lie innermost"),
        Case(name="sliced", axes=axes(2, 3, 40, 32), layout="sliced", why="rows inside a wider tensor"),
        Case(
            name="misaligned",
            axes=axes(1, 2, 64, 32),
            layout="misaligned",
            why="sizes invite vector loads, the address forbids them",
        ),
    ),
    workloads=(
        Workload(
            name="gpt_oss_512",
            axes=axes(1, 64, 512, 64),
            scale="laptop",
            source="gpt-oss 20B: 64 query heads of 64, 512 tokens",
        ),
        Workload(
            name="gpt_oss_8k", axes=axes(1, 64, 8192, 64), source="gpt-oss 20B: 64 query heads of 64, 8192 tokens"
        ),
    ),
    implementations=("cuda_rows", "torch_eager"),
)
