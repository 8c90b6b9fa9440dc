"""Scaled dot-product attention: out = softmax(q @ k^T * scale) @ v over the keys that each query sees, and lse, the
logarithm of each row's sum of exponentials.
"""

from opforge.core.attention import SCALARS, attend, by_heads, forward_errors
from opforge.core.attention_workloads import ATTENTIONS, PAIRS, axes
from opforge.core.operator import Case, Constraint, Law, Operator, TensorSpec, Tolerance
from opforge.core.rounding import Errors


def reference(q, k, v, **scalars):
    return tuple(by_heads(lambda q, k, v: attend(q, k, v, scalars), (q,), (k, v)))


def errors(inputs, outputs, scalars, dtype):
    found = by_heads(
        lambda q, k, v: forward_errors(q, k, v, scalars, dtype), (inputs["q"],), (inputs["k"], inputs["v"])
    )
    return {"out": Errors(*found[:3]), "lse": Errors(*found[3:])}


def among_the_values(inputs, outputs, scalars):
    out, v = outputs["out"], inputs["v"]
    if not out.numel() or not v.numel():
        return None
    # a mean with weights; rounded to the output dtype
    room = out.abs().max().item() / 100 + 1e-3 * v.abs().max().item()
    excess = (out.abs().max() - v.abs().max()).item()
    return None if excess <= room else f"a result exceeds the largest value by {excess:.3g}"


CAUSAL = {"causal": True}

operator = Operator(
    name="attention",
    about="scaled dot-product attention with causal and window masks, grouped heads and a soft cap",
    source="Vaswani et al., Attention is all you need, 2017; online softmax in blocks: Dao, FlashAttention-2, 2023",
    inputs=(
        TensorSpec(name="q", shape="batch heads*group nq d", about="queries"),
        TensorSpec(name="k", shape="batch heads nk d", about="keys, a head for each group of query heads"),
        TensorSpec(name="v", shape="batch heads nk dv", about="values"),
    ),
    outputs=(
        TensorSpec(name="out", shape="batch heads*group nq dv", about="0 where a query sees no key"),
        TensorSpec(name="lse", shape="batch heads*group nq", dtype="float32", about="-inf where a query sees no key"),
    ),
    scalars=SCALARS,
    constraints=(
        Constraint(
            name="windows_are_counts",
            expression="window_left >= -1 and window_right >= -1",
            about="window_left and window_right are numbers of keys, or -1 for all",
        ),
        Constraint(name="cap_is_positive", expression="softcap >= 0", about="softcap is above 0, or 0 for none"),
    ),
    reference=reference,
    flops=f"2 * batch * heads * group * (d + dv) * {PAIRS}",
    unit="matrix",
    tolerance=Tolerance(
        errors=errors,
        shared="dv",
        about="each exponential is off by what its score is; 16-bit factors of the second product are rounded once",
    ),
    laws=(Law(name="among_the_values", about="a mean of values is among them", holds=among_the_values),),
    cases=(
        Case(name="one_block", axes=axes(1, 2, 1, 64, 64, 64), why="whole blocks everywhere: no mask is at work"),
        Case(name="odd", axes=axes(2, 2, 1, 65, 63, 32), why="one past and one short of a block"),
        Case(
            name="prime", axes=axes(1, 1, 3, 37, 101, 24, 40), why="no block divides anything; three query heads each"
        ),
        Case(name="past_blocks", axes=axes(1, 1, 1, 129, 257, 64), why="a third block of keys with one key in it"),
        Case(name="one_query", axes=axes(2, 2, 4, 1, 200, 64), why="decoding: one query, four heads to a key head"),
        Case(name="one_key", axes=axes(1, 2, 1, 5, 1, 16), why="the result is the only value"),
        Case(name="one_of_all", axes=axes(1, 1, 1, 1, 1, 1), why="the smallest call"),
        Case(
            name="no_keys", axes=axes(1, 2, 1, 5, 0, 16), why="nothing to see: 0 and -inf, though outputs start as NaN"
        ),
        Case(name="no_queries", axes=axes(1, 2, 1, 0, 9, 16), why="an empty result: nothing may be launched"),
        Case(name="causal", axes=axes(1, 2, 1, 96, 96, 32), scalars=CAUSAL, why="the diagonal crosses blocks"),
        Case(
            name="causal_longer_keys",
            axes=axes(1, 1, 2, 65, 193, 64),
            scalars=CAUSAL,
            why="the last query sees the last key: the diagonal begins inside",
        ),
        Case(
            name="causal_longer_queries",
            axes=axes(1, 2, 1, 130, 63, 32),
            scalars=CAUSAL,
            why="the first queries, a whole block of them, see nothing: 0 and -inf, no NaN",
        ),
        Case(
            name="causal_top_left",
            axes=axes(1, 2, 1, 70, 150, 32),
            scalars={"causal": True, "align": "top_left"},
            why="the first query sees the first key alone, whatever follows",
        ),
        Case(
            name="window",
            axes=axes(1, 2, 1, 200, 200, 32),
            scalars={"causal": True, "window_left": 33},
            why="blocks on the left are never seen, and two edges may cross one block",
        ),
        Case(
            name="window_both",
            axes=axes(1, 1, 1, 150, 150, 16),
            scalars={"window_left": 20, "window_right": 7},
            why="a right window that is no diagonal",
        ),
        Case(
            name="window_of_one",
            axes=axes(1, 1, 1, 40, 40, 16),
            scalars={"window_left": 0, "window_right": 0},
            why="each query sees its own key: the result is v",
        ),
        Case(
            name="window_missed",
            axes=axes(1, 1, 1, 160, 40, 16),
            scalars={"window_left": 3, "align": "top_left"},
            why="the last queries see nothing at all",
        ),
        Case(
            name="softcap", axes=axes(1, 2, 1, 66, 90, 32), scalars={"softcap": 2.0}, why="a tanh between the products"
        ),
        Case(
            name="scaled",
            axes=axes(1, 2, 1, 33, 45, 48),
            scalars={"scale": 0.7},
            why="a scale of one's own, and sharp rows",
        ),
        Case(name="head_96", axes=axes(1, 1, 1, 70, 75, 96), scalars=CAUSAL, why="a head that is no power of two"),
        Case(name="head_192_128", axes=axes(1, 1, 1, 50, 66, 192, 128), why="values narrower than keys"),
        Case(name="head_256", axes=axes(1, 1, 1, 40, 40, 256), why="the widest head in use"),
        Case(name="head_odd", axes=axes(1, 2, 1, 30, 35, 17, 5), why="rows that start at no 16-byte address"),
        Case(name="long", axes=axes(1, 1, 1, 3, 4097, 32), why="many blocks of keys, and a maximum that moves"),
        Case(
            name="large_values",
            axes=axes(1, 2, 1, 40, 77, 32),
            distribution="large",
            why="exponentials overflow without the shift",
        ),
        Case(
            name="offset",
            axes=axes(1, 1, 1, 34, 60, 16),
            distribution="offset",
            why="all scores are large and alike: what is subtracted must be the row's own maximum",
        ),
        Case(name="zeros", axes=axes(1, 1, 1, 20, 50, 16), distribution="zeros", why="equal weights: lse is log(nk)"),
        Case(
            name="transposed",
            axes=axes(2, 3, 1, 40, 50, 32),
            layout="transposed",
            why="d is not the last axis in memory",
        ),
        Case(
            name="sliced",
            axes=axes(2, 2, 1, 40, 50, 32),
            layout="sliced",
            why="heads inside a wider tensor, as a fused projection leaves them",
        ),
        Case(
            name="misaligned",
            axes=axes(1, 2, 1, 64, 64, 64),
            layout="misaligned",
            why="no vector loads at this address",
        ),
    ),
    workloads=ATTENTIONS,
    implementations=("triton_flash", "torch_eager", "torch_definition"),
    gradient="attention_backward",
)
