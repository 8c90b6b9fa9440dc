"""The gradients of attention: of queries, keys and values, from what it returned and what arrives for that."""

from opforge.core.operator import Case, Law, Operator, TensorSpec, Tolerance
from opforge.definitions.attention.attention import CONSTRAINTS, PAIRS, PARAMETERS, attended, in_parts
from opforge.definitions.attention.cases import BOTTOM, CAUSAL, SIDE_CASES, WORKLOADS, axes, plain
from opforge.definitions.attention.gradients import differentiated, gradient_errors
from opforge.definitions.attention.sides import ABOUT, NAMES, Sides


def reference(q, k, v, out, lse, dout, dlse, *beside, **scalars):
    sides = Sides.of(q, dict(zip(NAMES, beside, strict=True)))
    return differentiated(q, k, v, out, lse, dout, dlse, sides, scalars)


def follows(inputs, scalars):
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    out, lse = in_parts(attended, q, k, v, sides=Sides.of(q, inputs), scalars=scalars)
    return {"out": out, "lse": lse}


def errors(inputs, outputs, scalars, dtype):
    return gradient_errors(inputs, scalars, dtype)


def both_sides_agree(inputs, outputs, scalars):
    # a score is a product of q and k: what moves all scores by a factor moves either. sum(q dq) = sum(k dk), over all
    q, k, dq, dk = inputs["q"], inputs["k"], outputs["dq"], outputs["dk"]
    if not q.numel() or not k.numel():
        return None
    by_query, by_key = q * dq, k * dk
    # each element is rounded to the dtype, bfloat16 at the coarsest, or to float16's subnormals; sums of slopes cancel
    slack = sum((2.0**-7 * part.abs()).sum() for part in (by_query, by_key))
    slack = slack + 2.0**-20 * (q.abs().sum() + k.abs().sum()) * (1 + inputs["dout"].abs().amax())
    excess = ((by_query.sum() - by_key.sum()).abs() - slack).item()
    return None if excess <= 0 else f"sum(q * dq) and sum(k * dk) differ by {excess:.3g} more than rounding explains"


operator = Operator(
    name="attention_backward",
    about="the gradients of attention with respect to queries, keys and values",
    source="Dao, FlashAttention-2, arXiv:2307.08691, 2023, section 3.1: weights are made again from the log-sum-exp",
    inputs=(
        TensorSpec(name="q", shape="batch kv_heads*group queries head_dim"),
        TensorSpec(
            name="k", shape="batch kv_heads keys head_dim", about="head h of q reads head h // group of k and v"
        ),
        TensorSpec(name="v", shape="batch kv_heads keys value_dim"),
        TensorSpec(name="out", shape="batch kv_heads*group queries value_dim", about="what attention returned"),
        TensorSpec(
            name="lse", shape="batch kv_heads*group queries", dtype="float32", about="its log-sum-exp; -inf hides a row"
        ),
        TensorSpec(name="dout", shape="batch kv_heads*group queries value_dim", about="the gradient of out"),
        TensorSpec(name="dlse", shape="batch kv_heads*group queries", dtype="float32", about="the gradient of lse"),
        TensorSpec(
            name="key_lengths",
            shape="batch",
            dtype="int32",
            optional=True,
            below="keys + 1",
            about=ABOUT["key_lengths"],
        ),
        TensorSpec(name="bias", shape="batch kv_heads*group queries keys", optional=True, about=ABOUT["bias"]),
        TensorSpec(
            name="mask",
            shape="batch kv_heads*group queries keys",
            dtype="bool",
            optional=True,
            below="2",
            about=ABOUT["mask"],
        ),
        TensorSpec(
            name="alibi_slopes", shape="kv_heads*group", dtype="float32", optional=True, about=ABOUT["alibi_slopes"]
        ),
        TensorSpec(name="sinks", shape="kv_heads*group", dtype="float32", optional=True, about=ABOUT["sinks"]),
    ),
    outputs=(
        TensorSpec(name="dq", shape="batch kv_heads*group queries head_dim"),
        TensorSpec(name="dk", shape="batch kv_heads keys head_dim"),
        TensorSpec(name="dv", shape="batch kv_heads keys value_dim"),
    ),
    scalars=PARAMETERS,
    constraints=CONSTRAINTS,
    reference=reference,
    follows=follows,
    flops=f"2 * batch * kv_heads * group * (3 * head_dim + 2 * value_dim) * ({PAIRS})",
    unit="matrix",
    tolerance=Tolerance(
        errors=errors,
        shared="head_dim",
        rounds_factors=True,
        about="weights and slopes of scores carry what their sums may be off; 16-bit factors are rounded once",
    ),
    laws=(Law(name="both_sides_agree", about="sum(q * dq) is sum(k * dk)", holds=both_sides_agree),),
    cases=plain(
        Case(name="one_block", axes=axes(1, 2, 1, 64, 64, 64), why="whole blocks, no mask at work"),
        Case(name="odd", axes=axes(2, 1, 2, 65, 63, 32), why="a tail in each block; two heads share keys"),
        Case(name="one_past", axes=axes(1, 1, 1, 129, 129, 64), scalars=CAUSAL, why="length % 128 = 1, causal"),
        Case(name="one_short", axes=axes(1, 1, 3, 127, 127, 24, 40), why="length % 128 = 127, three heads share keys"),
        Case(name="one_query", axes=axes(1, 2, 4, 1, 133, 64), scalars=BOTTOM, why="a row's own sum is all there is"),
        Case(name="one_key", axes=axes(1, 2, 1, 5, 1, 16), why="one weight of 1: dq is what dlse brings"),
        Case(
            name="more_keys_top_left",
            axes=axes(1, 1, 2, 40, 200, 64),
            scalars=CAUSAL,
            why="the last keys are seen by none: their gradients are 0",
        ),
        Case(
            name="more_keys_bottom_right",
            axes=axes(1, 1, 2, 65, 193, 64),
            scalars=BOTTOM,
            why="the last query stands at the last key",
        ),
        Case(
            name="more_queries_bottom_right",
            axes=axes(1, 2, 1, 200, 40, 32),
            scalars=BOTTOM,
            why="whole blocks of queries see nothing: lse is -inf, and their gradients are 0",
        ),
        Case(
            name="left_window",
            axes=axes(1, 2, 1, 200, 200, 32),
            scalars={"causal": True, "window_left": 33},
            why="blocks on both sides of the window have no part",
        ),
        Case(
            name="right_window",
            axes=axes(1, 1, 1, 150, 150, 16),
            scalars={"window_left": 20, "window_right": 7},
            why="a limit to the right that is no diagonal",
        ),
        Case(
            name="right_window_alone",
            axes=axes(1, 1, 1, 130, 170, 32),
            scalars={"window_right": 5, "alignment": "bottom_right"},
            why="a limit to the right alone, aligned to the last key",
        ),
        Case(
            name="window_past_the_keys",
            axes=axes(1, 1, 1, 200, 60, 32),
            scalars={"window_left": 10, "window_right": 0},
            why="queries whose window lies behind all keys see nothing",
        ),
        Case(
            name="softcap",
            axes=axes(1, 2, 2, 67, 99, 64),
            scalars={"softcap": 2.0, "causal": True},
            why="the derivative of a tanh that bends most scores",
        ),
        Case(
            name="wide_scale",
            axes=axes(1, 1, 2, 65, 80, 32),
            scalars={"scale": 3.0},
            why="sharp rows: most weights vanish",
        ),
        Case(name="negative_scale", axes=axes(1, 1, 1, 33, 65, 32), scalars={"scale": -0.5}, why="a factor below 0"),
        Case(name="two_dims", axes=axes(1, 1, 2, 50, 66, 192, 128), scalars=BOTTOM, why="DeepSeek's 192 and 128"),
        Case(name="odd_dims", axes=axes(2, 1, 1, 37, 53, 33, 17), why="rows that no vector divides"),
        Case(name="head_96", axes=axes(1, 1, 1, 65, 70, 96), scalars=CAUSAL, why="Phi-3's 96: no power of two"),
        Case(name="head_256", axes=axes(1, 1, 1, 40, 70, 256), scalars=CAUSAL, why="Gemma's 256"),
        Case(
            name="long_causal",
            axes=axes(1, 1, 1, 530, 530, 16),
            scalars=CAUSAL,
            why="several blocks of queries for each block of keys",
        ),
        Case(name="tiny", axes=axes(1, 1, 1, 40, 60, 32), distribution="tiny", why="slopes near the smallest float16"),
        Case(name="zeros", axes=axes(1, 1, 1, 20, 50, 16), distribution="zeros", why="all weights alike, slopes of 0"),
        Case(name="no_batch", axes=axes(0, 2, 1, 9, 7, 16), why="nothing to do"),
        Case(name="no_queries", axes=axes(1, 2, 1, 0, 7, 16), why="dk and dv are 0, though outputs start as NaN"),
        Case(name="transposed", axes=axes(1, 2, 1, 70, 50, 32), layout="transposed", why="queries lie innermost"),
        Case(
            name="sliced",
            axes=axes(1, 2, 1, 40, 50, 32),
            layout="sliced",
            scalars=CAUSAL,
            why="rows inside a wider tensor, as a fused projection leaves them",
        ),
        Case(
            name="misaligned",
            axes=axes(1, 2, 1, 64, 64, 32),
            layout="misaligned",
            why="sizes invite vector loads, the address forbids them",
        ),
        *SIDE_CASES,
    ),
    workloads=WORKLOADS,
    implementations=(
        "cuda_wgmma",
        "cuda_wgmma_ordered",
        "triton_twokernels",
        "torch_eager",
        "torch_definition",
        "library_fa4",
    ),
)
