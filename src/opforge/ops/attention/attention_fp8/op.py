"""Attention of FP8 tensors: out = softmax(scale * (q_scale q) (k_scale k)^T, masked) (v_scale v), and its
log-sum-exp.
"""

from opforge.core.operator import Case, Law, Operator, TensorSpec, Tolerance
from opforge.definitions.attention.attention import PAIRS
from opforge.definitions.attention.cases import BOTTOM, CAUSAL, axes
from opforge.definitions.attention.fp8 import (
    CONSTRAINTS_FP8,
    DERIVED,
    FORMATS,
    PARAMETERS_FP8,
    WORKLOADS_FP8,
    attended_fp8,
    fp8_errors,
)
from opforge.definitions.attention.sides import ABOUT


def reference(q, k, v, q_scale, k_scale, v_scale, key_lengths, **scalars):
    return attended_fp8(q, k, v, q_scale, k_scale, v_scale, key_lengths, scalars)


def errors(inputs, outputs, scalars, dtype):
    return fp8_errors(inputs, outputs, scalars, dtype)


def inside_the_values(inputs, outputs, scalars):
    # weights are positive and sum to 1; rounded to FP8 each grows by an eighth at the most (E5M2: 2^-3)
    v, out = (inputs["v"] * inputs["v_scale"].unsqueeze(-2)).abs().amax(dim=2, keepdim=True), outputs["out"].abs()
    most = v.repeat_interleave(out.shape[1] // v.shape[1], dim=1) if v.shape[1] else v
    over = (out - most * (1 + 1 / 8 + 1 / 64)).amax().item() if out.numel() else 0.0
    return None if over <= 1e-30 else f"an element is {over:.3g} beyond the largest value of its column"


BLOCKS = {"q_block": 128, "k_block": 128}


def _case(name, sizes, why, *, given=(), scalars=None, **how):
    return Case(
        name=name,
        axes=axes(*sizes),
        scalars={"has_key_lengths": "key_lengths" in given, **(scalars or {})},
        why=why,
        **how,
    )


operator = Operator(
    name="attention_fp8",
    about="attention of FP8 queries, keys and values with scales for tensors, heads or blocks of rows, stored as "
    "bfloat16 or float16, and its log-sum-exp",
    source="Shah et al., FlashAttention-3, arXiv:2407.08608, section 3.3; formats: OCP 8-bit floating point "
    "specification 1.0",
    inputs=(
        TensorSpec(name="q", shape="batch kv_heads*group queries head_dim"),
        TensorSpec(
            name="k", shape="batch kv_heads keys head_dim", about="head h of q reads head h // group of k and v"
        ),
        TensorSpec(name="v", shape="batch kv_heads keys value_dim"),
        TensorSpec(
            name="q_scale",
            shape="batch kv_heads*group q_blocks",
            dtype="float32",
            domain="positive",
            about="what rows b * q_block and on of a head are multiplied by; one for the tensor is "
            "`scale.expand(batch, heads, 1)`: a view is taken as it is",
        ),
        TensorSpec(
            name="k_scale",
            shape="batch kv_heads k_blocks",
            dtype="float32",
            domain="positive",
            about="of rows b * k_block and on of a head",
        ),
        TensorSpec(
            name="v_scale",
            shape="batch kv_heads v_columns",
            dtype="float32",
            domain="positive",
            about="of a head, or with `v_channels` of each of its columns",
        ),
        TensorSpec(
            name="key_lengths",
            shape="batch",
            dtype="int32",
            optional=True,
            below="keys + 1",
            about=ABOUT["key_lengths"],
        ),
    ),
    outputs=(
        TensorSpec(name="out", shape="batch kv_heads*group queries value_dim", dtype="out_dtype"),
        TensorSpec(
            name="lse",
            shape="batch kv_heads*group queries",
            dtype="float32",
            about="the natural logarithm of the sum of exp(score); -inf where there is none",
        ),
    ),
    scalars=PARAMETERS_FP8,
    constraints=CONSTRAINTS_FP8,
    derived=DERIVED,
    dtypes=FORMATS,
    differentiable=("q_scale", "k_scale", "v_scale"),
    reference=reference,
    flops=f"2 * batch * kv_heads * group * (head_dim + value_dim) * ({PAIRS})",
    unit="matrix",
    tolerance=Tolerance(
        errors=errors,
        # where scores are small, the queries that share a head of keys average the same values with the same weights
        shared="group * queries",
        about="scores of FP8 tensor cores; weights may be rounded to the dtype before they meet v; sums of 512 keys "
        "are carried on in float32",
    ),
    laws=(Law(name="inside_the_values", about="an average of values is none beyond them", holds=inside_the_values),),
    cases=(
        _case("one_block", (1, 2, 1, 64, 64, 64), "whole blocks, no mask at work"),
        _case("one_past", (1, 1, 1, 129, 129, 64), "length % 128 = 1, causal", scalars=CAUSAL),
        _case("one_key", (1, 2, 1, 65, 1, 32), "64 queries stand before any key: 0 and -inf", scalars=BOTTOM),
        _case("one_query", (1, 2, 4, 1, 133, 64), "decoding: one query sees all keys", scalars=BOTTOM),
        _case(
            "more_queries",
            (1, 2, 1, 200, 40, 32),
            "whole blocks of queries see nothing: 0 and -inf, no NaN",
            scalars=BOTTOM,
        ),
        _case(
            "left_window",
            (1, 1, 2, 200, 200, 32),
            "a causal window that ends inside blocks",
            scalars={"causal": True, "window_left": 65},
        ),
        _case(
            "right_window",
            (1, 2, 1, 150, 150, 32),
            "keys to the right are seen, further than to the left",
            scalars={"window_left": 3, "window_right": 70},
        ),
        _case(
            "blocks",
            (2, 2, 2, 200, 300, 64),
            "two scales along q and three along k: any that is taken for its neighbour is an error of 100 %",
            scalars=BLOCKS,
        ),
        _case(
            "blocks_causal",
            (1, 1, 2, 280, 400, 32),
            "scales of unlike numbers of rows, and a mask that ends inside them",
            scalars={"q_block": 64, "k_block": 256, **BOTTOM},
        ),
        _case(
            "odd_blocks",
            (1, 2, 1, 70, 90, 32),
            "scales of 17 and 23 rows: no block of a kernel is one of theirs",
            scalars={"q_block": 17, "k_block": 23, "out_dtype": "float16"},
        ),
        _case("by_channel", (1, 2, 2, 66, 70, 48, 80), "each column of v has a scale", scalars={"v_channels": True}),
        _case(
            "softcap",
            (1, 2, 2, 67, 99, 64),
            "Gemma 2's cap, low enough to bend most scores, behind scales of blocks",
            scalars={"softcap": 2.0, "causal": True, **BLOCKS},
        ),
        _case(
            "wide_scale",
            (1, 1, 2, 65, 80, 32),
            "sharp rows: most weights are below the least FP8 number",
            scalars={"scale": 3.0},
        ),
        _case(
            "negative_scale",
            (1, 1, 1, 33, 65, 32),
            "the largest score is that of the smallest product",
            scalars={"scale": -0.5},
        ),
        _case("odd_dims", (2, 1, 1, 37, 53, 33, 17), "rows that no vector divides"),
        _case("head_128", (1, 1, 2, 70, 150, 128), "Llama's 128", scalars=CAUSAL),
        _case("two_dims", (1, 1, 2, 70, 90, 192, 128), "DeepSeek's 192 and 128", scalars=BOTTOM),
        _case("head_256", (1, 1, 1, 40, 70, 256), "sums of 256 products of FP8", scalars=CAUSAL),
        _case("long_keys", (1, 1, 1, 3, 4001, 16), "many blocks of keys for few queries: sums go on in float32"),
        _case(
            "long_keys_one_sign",
            (1, 1, 1, 3, 16384, 16),
            "values of one sign: a sum that stays in 14 bits loses 2^-14 of itself with each 32 keys",
            distribution="skewed",
            scalars={"scale": 0.002},
        ),
        _case(
            "padded",
            (3, 1, 2, 70, 133, 32),
            "each entry of the batch has a length of its own; keys past it are seen by none",
            given=("key_lengths",),
            scalars={"causal": True, **BLOCKS},
        ),
        _case(
            "padded_to_nothing",
            (9, 1, 1, 5, 2, 16),
            "lengths of 0, 1 and 2: entries without a key give 0 and -inf",
            given=("key_lengths",),
        ),
        _case("tiny", (1, 1, 1, 40, 70, 32), "all is 0 in FP8, and scales are small", distribution="tiny"),
        _case("zeros", (1, 1, 1, 40, 70, 32), "lse is log(keys)", distribution="zeros"),
        _case("no_queries", (1, 2, 1, 0, 7, 16), "nothing to do, some keys"),
        _case("transposed", (1, 2, 1, 70, 50, 32), "queries lie innermost", layout="transposed", scalars=BLOCKS),
        _case("sliced", (1, 2, 1, 70, 50, 32), "rows inside a wider tensor", layout="sliced", scalars=CAUSAL),
        _case(
            "misaligned",
            (1, 2, 1, 64, 64, 32),
            "sizes invite vector loads, the address forbids them",
            layout="misaligned",
        ),
    ),
    workloads=WORKLOADS_FP8,
    implementations=("cuda_wgmma", "triton_twoloops", "torch_definition"),
)
