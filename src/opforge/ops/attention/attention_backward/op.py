"""The gradients of attention: of queries, keys and values, from its result, its logarithms and what arrives for
both.
"""

from opforge.core.attention import SCALARS, attend_backward, backward_errors, by_heads
from opforge.core.attention_workloads import ATTENTIONS, PAIRS, axes
from opforge.core.operator import Case, Constraint, Operator, TensorSpec, Tolerance
from opforge.core.rounding import Errors, few_ulps

QUERIES, KEYS = ("dout", "q", "out", "lse", "dlse"), ("k", "v")


def _grouped(tensor, heads):
    return tensor.unflatten(1, (heads, tensor.shape[1] // max(1, heads)))


def reference(q, k, v, out, lse, dout, dlse, **scalars):
    def one(dout, q, out, lse, dlse, k, v):
        return attend_backward(dout, q, out, lse, dlse, k, v, scalars)

    dq, dk, dv = by_heads(one, (dout, q, out, lse, dlse), (k, v))
    # the query heads of a group share their keys
    return dq, _grouped(dk, k.shape[1]).sum(dim=2), _grouped(dv, k.shape[1]).sum(dim=2)


def errors(inputs, outputs, scalars, dtype):
    def one(dout, q, out, lse, dlse, k, v):
        return backward_errors(dout, q, out, lse, dlse, k, v, scalars, dtype)

    found = by_heads(one, [inputs[name] for name in QUERIES], [inputs[name] for name in KEYS])
    heads = inputs["k"].shape[1]

    def over_the_group(largest, typical, reached, result):
        group = _grouped(largest, heads)
        added = few_ulps(result.abs() + reached_of(group), 2.0 * group.shape[2], 1.0 * group.shape[2])
        return (
            Errors(
                group.sum(dim=2),
                _grouped(typical, heads).square().sum(dim=2).sqrt(),
                _grouped(reached, heads).sum(dim=2),
            )
            + added
        )

    def reached_of(group):
        # sums over a group begin with numbers that are no larger than their errors times 2^20
        return group.amax(dim=2)

    return {
        "dq": Errors(*found[:3]),
        "dk": over_the_group(*found[3:6], outputs["dk"]),
        "dv": over_the_group(*found[6:], outputs["dv"]),
    }


CAUSAL = {"causal": True}

operator = Operator(
    name="attention_backward",
    about="the gradients of attention with respect to queries, keys and values",
    source="Dao, FlashAttention-2, 2023, section 3.1: weights are computed again from the logarithms",
    inputs=(
        TensorSpec(name="q", shape="batch heads*group nq d"),
        TensorSpec(name="k", shape="batch heads nk d"),
        TensorSpec(name="v", shape="batch heads nk dv"),
        TensorSpec(name="out", shape="batch heads*group nq dv", about="what attention returned"),
        TensorSpec(name="lse", shape="batch heads*group nq", dtype="float32", about="its logarithms"),
        TensorSpec(name="dout", shape="batch heads*group nq dv", about="the gradient of out"),
        TensorSpec(name="dlse", shape="batch heads*group nq", dtype="float32", about="the gradient of lse"),
    ),
    outputs=(
        TensorSpec(name="dq", shape="batch heads*group nq d"),
        TensorSpec(name="dk", shape="batch heads nk d"),
        TensorSpec(name="dv", shape="batch heads nk dv"),
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
    flops=f"2 * batch * heads * group * (3 * d + 2 * dv) * {PAIRS}",
    unit="matrix",
    tolerance=Tolerance(
        errors=errors,
        shared="d",
        about="weights and slopes of scores carry what their sums may be off; 16-bit factors are rounded once",
    ),
    cases=(
        Case(name="one_block", axes=axes(1, 2, 1, 64, 64, 64), why="whole blocks everywhere: no mask is at work"),
        Case(name="odd", axes=axes(2, 1, 2, 65, 63, 32), why="a tail in each block; two heads to a key head"),
        Case(name="prime", axes=axes(1, 1, 3, 37, 101, 24, 40), why="three query heads to a key head"),
        Case(name="past_blocks", axes=axes(1, 1, 1, 129, 257, 64), why="a third block with one key in it"),
        Case(name="one_query", axes=axes(1, 2, 2, 1, 130, 32), why="a single row: D cancels much of its slopes"),
        Case(name="one_key", axes=axes(1, 2, 1, 5, 1, 16), why="a single weight"),
        Case(name="no_keys", axes=axes(1, 2, 1, 5, 0, 16), why="dq is 0, though outputs start as NaN"),
        Case(name="no_queries", axes=axes(1, 2, 1, 0, 9, 16), why="dk and dv are 0"),
        Case(name="causal", axes=axes(1, 2, 1, 96, 96, 32), scalars=CAUSAL, why="the diagonal crosses blocks"),
        Case(
            name="causal_longer_keys",
            axes=axes(1, 1, 2, 65, 193, 64),
            scalars=CAUSAL,
            why="the last query sees the last key",
        ),
        Case(
            name="causal_longer_queries",
            axes=axes(1, 2, 1, 130, 63, 32),
            scalars=CAUSAL,
            why="whole blocks of queries see nothing: their gradients are 0",
        ),
        Case(
            name="causal_top_left",
            axes=axes(1, 2, 1, 70, 150, 32),
            scalars={"causal": True, "align": "top_left"},
            why="the last keys are seen by nobody: their gradients are 0",
        ),
        Case(
            name="window",
            axes=axes(1, 2, 1, 200, 200, 32),
            scalars={"causal": True, "window_left": 33},
            why="blocks on both sides have no part",
        ),
        Case(
            name="window_both",
            axes=axes(1, 1, 1, 150, 150, 16),
            scalars={"window_left": 20, "window_right": 7},
            why="a right window that is no diagonal",
        ),
        Case(name="softcap", axes=axes(1, 2, 1, 66, 90, 32), scalars={"softcap": 2.0}, why="the derivative of a tanh"),
        Case(name="head_96", axes=axes(1, 1, 1, 70, 75, 96), scalars=CAUSAL, why="a head that is no power of two"),
        Case(name="head_192_128", axes=axes(1, 1, 1, 50, 66, 192, 128), why="values narrower than keys"),
        Case(name="head_256", axes=axes(1, 1, 1, 40, 40, 256), why="the widest head in use"),
        Case(name="head_odd", axes=axes(1, 2, 1, 30, 35, 17, 5), why="rows that start at no 16-byte address"),
        Case(
            name="tiny_values",
            axes=axes(1, 1, 1, 40, 60, 32),
            distribution="tiny",
            why="slopes near the smallest float16",
        ),
        Case(name="zeros", axes=axes(1, 1, 1, 20, 50, 16), distribution="zeros", why="weights of one, slopes of 0"),
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
    ),
    workloads=ATTENTIONS,
    implementations=("triton_flash", "torch_definition"),
)
