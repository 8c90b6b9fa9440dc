"""Attention: out = softmax(scale * q k^T, masked) v, and the logarithm of each row's sum of exponentials."""

from opforge.core.definition.likeness import Like, Lowered
from opforge.core.operator import Case, Law, Operator, TensorSpec, Tolerance
from opforge.definitions.attention.attention import CONSTRAINTS, PAIRS, PARAMETERS, attended, attention_errors, in_parts
from opforge.definitions.attention.cases import BOTTOM, CAUSAL, SIDE_CASES, WORKLOADS, axes, given, plain
from opforge.definitions.attention.sides import ABOUT, NAMES, Sides
from opforge.definitions.torch_calls import unfit


def reference(q, k, v, *beside, **scalars):
    sides = Sides.of(q, dict(zip(NAMES, beside, strict=True)))
    return tuple(in_parts(attended, q, k, v, sides=sides, scalars=scalars))


def errors(inputs, outputs, scalars, dtype):
    return attention_errors(inputs, outputs, scalars, dtype)


def inside_the_values(inputs, outputs, scalars):
    # weights are positive and sum to 1 at the most before dropout: no element is beyond the largest of its column;
    # bfloat16 rounds by 1/256
    v, out = inputs["v"].abs().amax(dim=2, keepdim=True), outputs["out"].abs()
    most = v.repeat_interleave(out.shape[1] // v.shape[1], dim=1) if v.shape[1] else v
    over = (out - most * (1 + 1 / 64) / (1 - scalars["dropout"] or 1.0)).amax().item() if out.numel() else 0.0
    return None if over <= 1e-30 else f"an element is {over:.3g} beyond the largest value of its column"


def lower(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """As torch.nn.functional.scaled_dot_product_attention, of tensors [batch, heads, length, dim] or without heads,
    where nothing is dropped (PyTorch's own generator says what) and the mask wants no gradient.
    """
    import torch

    if dropout_p:
        return "PyTorch's generator says what is dropped"
    if reason := unfit(query, key, value):
        return reason
    if query.ndim not in (3, 4) or not query.ndim == key.ndim == value.ndim:
        return "attention takes batch, heads, length and dim"
    q, k, v = (tensor if tensor.ndim == 4 else tensor.unsqueeze(1) for tensor in (query, key, value))
    heads, shared = q.shape[1], k.shape[1]
    if not (q.shape[0] == k.shape[0] == v.shape[0] and k.shape[:3] == v.shape[:3] and q.shape[3] == k.shape[3]):
        return "what would be broadcast is PyTorch's"
    if heads != shared and not (enable_gqa and shared and heads % shared == 0):
        return "heads of keys and queries differ"
    if not k.shape[2] or not k.shape[3] or not v.shape[3] or scale == 0:
        return "there is nothing to weigh"
    beside = {}
    if attn_mask is not None:
        if is_causal or attn_mask.device != q.device or attn_mask.dtype not in (torch.bool, q.dtype):
            return "such a mask is PyTorch's"
        if attn_mask.requires_grad and torch.is_grad_enabled():
            return "the gradient of a mask is PyTorch's"
        shape = (*q.shape[:3], k.shape[2])
        # without heads its first axis is the batch
        mask = attn_mask.unsqueeze(1) if query.ndim == attn_mask.ndim == 3 else attn_mask
        if mask.ndim > 4 or any(own not in (1, size) for own, size in zip(mask.shape[::-1], shape[::-1], strict=False)):
            return "such a mask is PyTorch's"
        beside["mask" if mask.dtype == torch.bool else "bias"] = mask.expand(shape)
    scalars = {"causal": bool(is_causal), "scale": 0.0 if scale is None else float(scale)}
    four = query.ndim == 4
    return Lowered((q, k, v), {**scalars, **beside}, lambda made: made[0] if four else made[0].squeeze(1))


operator = Operator(
    name="attention",
    about="scaled dot-product attention with masks, windows, padding, biases, sinks and dropout, and its log-sum-exp",
    source="Vaswani et al. 2017; Dao et al., FlashAttention, arXiv:2205.14135",
    inputs=(
        TensorSpec(name="q", shape="batch kv_heads*group queries head_dim"),
        TensorSpec(
            name="k", shape="batch kv_heads keys head_dim", about="head h of q reads head h // group of k and v"
        ),
        TensorSpec(name="v", shape="batch kv_heads keys value_dim"),
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
        TensorSpec(name="out", shape="batch kv_heads*group queries value_dim"),
        TensorSpec(
            name="lse",
            shape="batch kv_heads*group queries",
            dtype="float32",
            about="the natural logarithm of the sum of exp(score), the sink's too; -inf where there is none",
        ),
    ),
    scalars=PARAMETERS,
    constraints=CONSTRAINTS,
    reference=reference,
    flops=f"2 * batch * kv_heads * group * (head_dim + value_dim) * ({PAIRS})",
    unit="matrix",
    tolerance=Tolerance(
        errors=errors,
        # where scores are small, the queries that share a head of keys average the same values with the same weights
        shared="group * queries",
        about="scores and sums in float32; weights may be rounded to the dtype before they meet v",
    ),
    laws=(Law(name="inside_the_values", about="an average of values is none beyond them", holds=inside_the_values),),
    cases=plain(
        Case(name="one_block", axes=axes(1, 2, 1, 64, 64, 64), why="whole blocks, no mask at work"),
        Case(name="one_past", axes=axes(1, 1, 1, 129, 129, 64), scalars=CAUSAL, why="length % 128 = 1, causal"),
        Case(name="half_block", axes=axes(1, 1, 1, 192, 192, 32), scalars=CAUSAL, why="length % 128 = 64, causal"),
        Case(name="one_short", axes=axes(1, 1, 2, 127, 127, 32), why="length % 128 = 127, two heads share keys"),
        Case(name="one_token", axes=axes(2, 2, 1, 1, 1, 64), scalars=CAUSAL, why="N = 1: out is v"),
        Case(name="one_query", axes=axes(1, 2, 4, 1, 133, 64), scalars=BOTTOM, why="decoding: one query sees all keys"),
        Case(name="one_key", axes=axes(1, 2, 1, 65, 1, 32), scalars=BOTTOM, why="64 queries stand before any key"),
        Case(
            name="more_keys_top_left",
            axes=axes(1, 1, 3, 40, 200, 64),
            scalars=CAUSAL,
            why="Nq != Nk, MQA: query 0 stands at key 0, the last 160 keys are seen by none",
        ),
        Case(
            name="more_keys_bottom_right",
            axes=axes(1, 1, 3, 40, 200, 64),
            scalars=BOTTOM,
            why="Nq != Nk: the last query stands at the last key",
        ),
        Case(
            name="more_queries_bottom_right",
            axes=axes(1, 2, 1, 200, 40, 32),
            scalars=BOTTOM,
            why="whole blocks of queries see nothing: 0 and -inf, no NaN",
        ),
        Case(
            name="left_window",
            axes=axes(1, 1, 2, 200, 200, 32),
            scalars={"causal": True, "window_left": 65},
            why="a causal window that ends inside blocks",
        ),
        Case(
            name="right_window",
            axes=axes(1, 2, 1, 150, 150, 32),
            scalars={"window_left": 3, "window_right": 70},
            why="keys to the right are seen, further than to the left",
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
            name="itself_alone",
            axes=axes(1, 1, 1, 70, 70, 16),
            scalars={"window_left": 0, "window_right": 0},
            why="each query sees one key: out is v, lse the score",
        ),
        Case(
            name="softcap",
            axes=axes(1, 2, 2, 67, 99, 64),
            scalars={"softcap": 2.0, "causal": True},
            why="Gemma 2's cap, low enough to bend most scores",
        ),
        Case(
            name="wide_scale",
            axes=axes(1, 1, 2, 65, 80, 32),
            scalars={"scale": 3.0},
            why="sharp rows: a shift by the maximum is needed, most weights vanish",
        ),
        Case(
            name="negative_scale",
            axes=axes(1, 1, 1, 33, 65, 32),
            scalars={"scale": -0.5},
            why="the largest score is that of the smallest product",
        ),
        Case(name="two_dims", axes=axes(1, 1, 2, 70, 90, 192, 128), scalars=BOTTOM, why="DeepSeek's 192 and 128"),
        Case(name="odd_dims", axes=axes(2, 1, 1, 37, 53, 33, 17), why="rows that no vector divides"),
        Case(name="head_96", axes=axes(1, 1, 1, 65, 65, 96), scalars=CAUSAL, why="Phi-3's 96: no power of two"),
        Case(name="head_256", axes=axes(1, 1, 1, 40, 70, 256), scalars=CAUSAL, why="Gemma's 256"),
        Case(name="long_keys", axes=axes(1, 1, 1, 3, 4001, 16), why="many blocks of keys for few queries"),
        Case(
            name="long_causal",
            axes=axes(1, 1, 1, 530, 530, 16),
            scalars=CAUSAL,
            why="several blocks of keys for each block of queries: sums are rescaled",
        ),
        Case(name="tiny", axes=axes(1, 1, 1, 40, 70, 32), distribution="tiny", why="all weights are alike"),
        Case(
            name="offset",
            axes=axes(1, 1, 1, 40, 70, 32),
            distribution="offset",
            dtype="float32",
            scalars={"scale": 0.01},
            why="a common part of all scores cancels",
        ),
        Case(name="zeros", axes=axes(1, 1, 1, 40, 70, 32), distribution="zeros", why="lse is log(keys)"),
        Case(
            name="vast_scores_and_sinks",
            axes=axes(2, 1, 2, 65, 31, 33, 17),
            distribution="scaled_half",
            scalars=given("key_lengths", "sinks", causal=True),
            why="a rounded product taken off one that was not is vast here: weights and sinks leave their range",
        ),
        Case(name="no_batch", axes=axes(0, 2, 1, 9, 7, 16), why="nothing to do"),
        Case(name="no_queries", axes=axes(1, 2, 1, 0, 7, 16), why="nothing to do, some keys"),
        Case(name="transposed", axes=axes(1, 2, 1, 70, 50, 32), layout="transposed", why="queries lie innermost"),
        Case(
            name="sliced",
            axes=axes(1, 2, 1, 70, 50, 32),
            layout="sliced",
            scalars=CAUSAL,
            why="rows inside a wider tensor",
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
    gradient="attention_backward",
    further_gradients=("attention_bias_backward", "attention_sinks_backward"),
    implementations=(
        "cuda_wgmma",
        "triton_gluon",
        "triton_twoloops",
        "triton_online",
        "tilelang_edges",
        "cpp_blocked",
        "cpp_online",
        "cpp_twokernels",
        "cpp_threekernels",
        "torch_eager",
        "torch_definition",
        "library_fa4",
        "library_flex",
    ),
    like=(Like(function="torch.nn.functional.scaled_dot_product_attention", lower=lower, only_kernels=True),),
)
