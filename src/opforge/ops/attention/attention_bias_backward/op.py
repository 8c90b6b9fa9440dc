"""The gradient of attention's bias, from what attention returned and what arrives for that."""

from dataclasses import replace

from opforge.core.operator import Case, Operator, TensorSpec, Tolerance, Workload
from opforge.definitions.attention.attention import CONSTRAINTS, PAIRS, PARAMETERS, attended, in_parts
from opforge.definitions.attention.cases import BOTTOM, CAUSAL, axes, given
from opforge.definitions.attention.gradients import bias_differentiated, bias_errors
from opforge.definitions.attention.sides import ABOUT, Sides

BESIDE = ("bias", "key_lengths", "mask", "alibi_slopes")
OPTIONAL = BESIDE[1:]


def reference(q, k, v, out, lse, dout, dlse, *beside, **scalars):
    sides = Sides.of(q, dict(zip(BESIDE, beside, strict=True)))
    return bias_differentiated(q, k, v, out, lse, dout, dlse, sides, scalars)


def follows(inputs, scalars):
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    out, lse = in_parts(attended, q, k, v, sides=Sides.of(q, inputs), scalars=scalars)
    return {"out": out, "lse": lse}


def errors(inputs, outputs, scalars, dtype):
    return bias_errors(inputs, scalars, dtype)


def alone(*items):
    """Cases or workloads that are given beside the bias only what they name."""
    absent = {f"has_{name}": False for name in OPTIONAL}
    return tuple(replace(item, scalars={**absent, **item.scalars}) for item in items)


operator = Operator(
    name="attention_bias_backward",
    about="the gradient of attention's bias: that of each score, after the cap",
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
        TensorSpec(name="bias", shape="batch kv_heads*group queries keys", about=ABOUT["bias"]),
        TensorSpec(
            name="key_lengths",
            shape="batch",
            dtype="int32",
            optional=True,
            below="keys + 1",
            about=ABOUT["key_lengths"],
        ),
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
    ),
    outputs=(TensorSpec(name="dbias", shape="batch kv_heads*group queries keys", about="0 where the key is not seen"),),
    scalars=PARAMETERS,
    constraints=CONSTRAINTS,
    reference=reference,
    follows=follows,
    carried=("sinks",),
    flops=f"2 * batch * kv_heads * group * (head_dim + value_dim) * ({PAIRS})",
    unit="matrix",
    tolerance=Tolerance(
        errors=errors,
        shared="keys",
        about="weights carry what their scores may be off, slopes that and their row's sum of dout * out",
    ),
    cases=alone(
        Case(name="one_block", axes=axes(1, 2, 1, 64, 64, 64), why="whole blocks, no mask at work"),
        Case(name="odd", axes=axes(2, 1, 2, 65, 63, 32), why="a tail in each block; two heads share keys"),
        Case(name="one_past", axes=axes(1, 1, 1, 129, 129, 64), scalars=CAUSAL, why="0 above the diagonal, as written"),
        Case(name="one_query", axes=axes(1, 2, 4, 1, 133, 64), scalars=BOTTOM, why="a row's own sum is all there is"),
        Case(name="one_key", axes=axes(1, 2, 1, 5, 1, 16), why="one weight of 1: what dlse brings"),
        Case(
            name="blind_rows",
            axes=axes(1, 2, 1, 200, 40, 32),
            scalars=BOTTOM,
            why="whole blocks of queries see nothing: 0, though outputs start as NaN",
        ),
        Case(
            name="window",
            axes=axes(1, 1, 2, 150, 170, 16),
            scalars={"window_left": 20, "window_right": 7},
            why="blocks on both sides of the window have no part",
        ),
        Case(
            name="softcap",
            axes=axes(1, 2, 2, 67, 99, 64),
            scalars={"softcap": 2.0, "causal": True},
            why="what is added after the cap is not bent by it",
        ),
        Case(name="wide_scale", axes=axes(1, 1, 2, 65, 80, 32), scalars={"scale": 3.0}, why="most weights vanish"),
        Case(name="two_dims", axes=axes(1, 1, 2, 50, 66, 192, 128), scalars=BOTTOM, why="DeepSeek's 192 and 128"),
        Case(name="odd_dims", axes=axes(2, 1, 1, 37, 53, 33, 17), why="rows that no vector divides"),
        Case(name="head_256", axes=axes(1, 1, 1, 40, 70, 256), scalars=CAUSAL, why="Gemma's 256"),
        Case(
            name="padded",
            axes=axes(3, 1, 2, 70, 133, 32),
            scalars=given("key_lengths", causal=True),
            why="each entry of the batch has a length of its own",
        ),
        Case(
            name="padded_to_nothing",
            axes=axes(9, 1, 1, 5, 2, 16),
            scalars=given("key_lengths"),
            why="lengths of 0, 1 and 2",
        ),
        Case(name="masked", axes=axes(2, 1, 2, 65, 130, 32), scalars=given("mask"), why="keys are seen here and there"),
        Case(
            name="alibi",
            axes=axes(2, 1, 3, 65, 90, 32),
            scalars=given("alibi_slopes", alignment="bottom_right"),
            why="both are added to the scores",
        ),
        Case(
            name="dropout",
            axes=axes(2, 2, 2, 67, 101, 32),
            scalars={"dropout": 0.25, "seed": 77, "offset": 3, "causal": True},
            why="a dropped weight has a gradient: less its row's sum",
        ),
        Case(
            name="all_of_it",
            axes=axes(3, 2, 2, 35, 77, 32),
            scalars=given(*OPTIONAL, causal=True, alignment="bottom_right", softcap=4.0, dropout=0.1, seed=2**40 + 5),
            why="everything at once",
        ),
        Case(name="tiny", axes=axes(1, 1, 1, 40, 60, 32), distribution="tiny", why="slopes near the smallest float16"),
        Case(name="zeros", axes=axes(1, 1, 1, 20, 50, 16), distribution="zeros", why="all weights alike, slopes of 0"),
        Case(name="no_batch", axes=axes(0, 2, 1, 9, 7, 16), why="nothing to do"),
        Case(name="no_queries", axes=axes(1, 2, 1, 0, 7, 16), why="nothing to do, some keys"),
        Case(
            name="transposed",
            axes=axes(2, 1, 2, 33, 50, 16),
            layout="transposed",
            scalars=given(*OPTIONAL, window_left=30),
            why="queries lie innermost, those of bias and mask too",
        ),
        Case(name="sliced", axes=axes(1, 2, 1, 40, 50, 32), layout="sliced", scalars=CAUSAL, why="in wider tensors"),
        Case(
            name="misaligned",
            axes=axes(1, 2, 1, 64, 64, 32),
            layout="misaligned",
            why="sizes invite vector loads, the address forbids them",
        ),
    ),
    workloads=alone(
        Workload(
            name="t5_512",
            axes=axes(1, 12, 1, 512, 512, 64),
            scale="laptop",
            source="T5 base: 12 heads of 64, relative position bias, 512 tokens",
        ),
        Workload(
            name="evoformer_256",
            axes=axes(128, 4, 1, 256, 256, 32),
            source="AlphaFold 2: 4 heads of 32, a pair bias, 128 sequences of 256 residues",
        ),
        Workload(
            name="b4_h16_n4096_d64",
            axes=axes(4, 16, 1, 4096, 4096, 64),
            source="FlashAttention's benchmark with a bias: 4 x 16 heads of 64, 4096 tokens",
        ),
    ),
    implementations=("triton_blocks", "torch_eager", "torch_definition"),
)
