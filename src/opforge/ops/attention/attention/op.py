"""Attention: out = softmax(scale * q k^T, masked) v, and the logarithm of each row's sum of exponentials."""

from opforge.core.attention import CONSTRAINTS, PAIRS, PARAMETERS, attended, attention_errors, in_parts
from opforge.core.operator import Case, Law, Operator, TensorSpec, Tolerance, Workload


def reference(q, k, v, **scalars):
    return tuple(in_parts(attended, q, k, v, scalars=scalars))


def errors(inputs, outputs, scalars, dtype):
    return attention_errors(inputs, outputs, scalars, dtype)


def inside_the_values(inputs, outputs, scalars):
    # weights are positive and sum to 1: no element is beyond the largest of its column; bfloat16 rounds by 1/256
    v, out = inputs["v"].abs().amax(dim=2, keepdim=True), outputs["out"].abs()
    most = v.repeat_interleave(out.shape[1] // v.shape[1], dim=1) if v.shape[1] else v
    over = (out - most * (1 + 1 / 64)).amax().item() if out.numel() else 0.0
    return None if over <= 1e-30 else f"an element is {over:.3g} beyond the largest value of its column"


def _axes(batch, kv_heads, group, queries, keys, head_dim, value_dim=None):
    return {
        "batch": batch,
        "kv_heads": kv_heads,
        "group": group,
        "queries": queries,
        "keys": keys,
        "head_dim": head_dim,
        "value_dim": head_dim if value_dim is None else value_dim,
    }


CAUSAL = {"causal": True}
BOTTOM = {"causal": True, "alignment": "bottom_right"}


def _published(batch, heads, length, head_dim):
    axes = _axes(batch, heads, 1, length, length, head_dim)
    name = f"b{batch}_h{heads}_n{length}_d{head_dim}"
    source = f"FlashAttention's benchmark: batch {batch}, {heads} heads of {head_dim}, {length} tokens"
    return (
        Workload(name=name, axes=axes, source=source),
        Workload(name=f"{name}_causal", axes=axes, scalars=CAUSAL, source=f"{source}, causal"),
    )


operator = Operator(
    name="attention",
    about="scaled dot-product attention with causal masks, windows and softcap, and its log-sum-exp",
    source="Vaswani et al. 2017; Dao et al., FlashAttention, arXiv:2205.14135",
    inputs=(
        TensorSpec(name="q", shape="batch kv_heads*group queries head_dim"),
        TensorSpec(
            name="k", shape="batch kv_heads keys head_dim", about="head h of q reads head h // group of k and v"
        ),
        TensorSpec(name="v", shape="batch kv_heads keys value_dim"),
    ),
    outputs=(
        TensorSpec(name="out", shape="batch kv_heads*group queries value_dim"),
        TensorSpec(
            name="lse",
            shape="batch kv_heads*group queries",
            dtype="float32",
            about="the natural logarithm of the sum of exp(score); -inf where a query sees nothing",
        ),
    ),
    scalars=PARAMETERS,
    constraints=CONSTRAINTS,
    reference=reference,
    flops=f"2 * batch * kv_heads * group * (head_dim + value_dim) * ({PAIRS})",
    unit="matrix",
    tolerance=Tolerance(
        errors=errors,
        about="scores and sums in float32; weights may be rounded to the dtype before they meet v",
    ),
    laws=(Law(name="inside_the_values", about="an average of values is none beyond them", holds=inside_the_values),),
    cases=(
        Case(name="one_block", axes=_axes(1, 2, 1, 64, 64, 64), why="whole blocks, no mask at work"),
        Case(name="one_past", axes=_axes(1, 1, 1, 129, 129, 64), scalars=CAUSAL, why="length % 128 = 1, causal"),
        Case(name="half_block", axes=_axes(1, 1, 1, 192, 192, 32), scalars=CAUSAL, why="length % 128 = 64, causal"),
        Case(name="one_short", axes=_axes(1, 1, 2, 127, 127, 32), why="length % 128 = 127, two heads share keys"),
        Case(name="one_token", axes=_axes(2, 2, 1, 1, 1, 64), scalars=CAUSAL, why="N = 1: out is v"),
        Case(
            name="one_query", axes=_axes(1, 2, 4, 1, 133, 64), scalars=BOTTOM, why="decoding: one query sees all keys"
        ),
        Case(name="one_key", axes=_axes(1, 2, 1, 65, 1, 32), scalars=BOTTOM, why="64 queries stand before any key"),
        Case(
            name="more_keys_top_left",
            axes=_axes(1, 1, 3, 40, 200, 64),
            scalars=CAUSAL,
            why="Nq != Nk, MQA: query 0 stands at key 0, the last 160 keys are seen by none",
        ),
        Case(
            name="more_keys_bottom_right",
            axes=_axes(1, 1, 3, 40, 200, 64),
            scalars=BOTTOM,
            why="Nq != Nk: the last query stands at the last key",
        ),
        Case(
            name="more_queries_bottom_right",
            axes=_axes(1, 2, 1, 200, 40, 32),
            scalars=BOTTOM,
            why="whole blocks of queries see nothing: 0 and -inf, no NaN",
        ),
        Case(
            name="left_window",
            axes=_axes(1, 1, 2, 200, 200, 32),
            scalars={"causal": True, "window_left": 65},
            why="a causal window that ends inside blocks",
        ),
        Case(
            name="right_window",
            axes=_axes(1, 2, 1, 150, 150, 32),
            scalars={"window_left": 3, "window_right": 70},
            why="keys to the right are seen, further than to the left",
        ),
        Case(
            name="right_window_alone",
            axes=_axes(1, 1, 1, 130, 170, 32),
            scalars={"window_right": 5, "alignment": "bottom_right"},
            why="a limit to the right alone, aligned to the last key",
        ),
        Case(
            name="window_past_the_keys",
            axes=_axes(1, 1, 1, 200, 60, 32),
            scalars={"window_left": 10, "window_right": 0},
            why="queries whose window lies behind all keys see nothing",
        ),
        Case(
            name="itself_alone",
            axes=_axes(1, 1, 1, 70, 70, 16),
            scalars={"window_left": 0, "window_right": 0},
            why="each query sees one key: out is v, lse the score",
        ),
        Case(
            name="softcap",
            axes=_axes(1, 2, 2, 67, 99, 64),
            scalars={"softcap": 2.0, "causal": True},
            why="Gemma 2's cap, low enough to bend most scores",
        ),
        Case(
            name="wide_scale",
            axes=_axes(1, 1, 2, 65, 80, 32),
            scalars={"scale": 3.0},
            why="sharp rows: a shift by the maximum is needed, most weights vanish",
        ),
        Case(
            name="negative_scale",
            axes=_axes(1, 1, 1, 33, 65, 32),
            scalars={"scale": -0.5},
            why="the largest score is that of the smallest product",
        ),
        Case(name="two_dims", axes=_axes(1, 1, 2, 70, 90, 192, 128), scalars=BOTTOM, why="DeepSeek's 192 and 128"),
        Case(name="odd_dims", axes=_axes(2, 1, 1, 37, 53, 33, 17), why="rows that no vector divides"),
        Case(name="head_96", axes=_axes(1, 1, 1, 65, 65, 96), scalars=CAUSAL, why="Phi-3's 96: no power of two"),
        Case(name="head_256", axes=_axes(1, 1, 1, 40, 70, 256), scalars=CAUSAL, why="Gemma's 256"),
        Case(name="long_keys", axes=_axes(1, 1, 1, 3, 4001, 16), why="many blocks of keys for few queries"),
        Case(
            name="long_causal",
            axes=_axes(1, 1, 1, 530, 530, 16),
            scalars=CAUSAL,
            why="several blocks of keys for each block of queries: sums are rescaled",
        ),
        Case(name="tiny", axes=_axes(1, 1, 1, 40, 70, 32), distribution="tiny", why="all weights are alike"),
        Case(
            name="offset",
            axes=_axes(1, 1, 1, 40, 70, 32),
            distribution="offset",
            dtype="float32",
            scalars={"scale": 0.01},
            why="a common part of all scores cancels",
        ),
        Case(name="zeros", axes=_axes(1, 1, 1, 40, 70, 32), distribution="zeros", why="lse is log(keys)"),
        Case(name="no_batch", axes=_axes(0, 2, 1, 9, 7, 16), why="nothing to do"),
        Case(name="no_queries", axes=_axes(1, 2, 1, 0, 7, 16), why="nothing to do, some keys"),
        Case(name="transposed", axes=_axes(1, 2, 1, 70, 50, 32), layout="transposed", why="queries lie innermost"),
        Case(
            name="sliced",
            axes=_axes(1, 2, 1, 70, 50, 32),
            layout="sliced",
            scalars=CAUSAL,
            why="rows inside a wider tensor",
        ),
        Case(
            name="misaligned",
            axes=_axes(1, 2, 1, 64, 64, 32),
            layout="misaligned",
            why="sizes invite vector loads, the address forbids them",
        ),
    ),
    workloads=(
        Workload(
            name="gpt2_512",
            axes=_axes(1, 12, 1, 512, 512, 64),
            scalars=CAUSAL,
            scale="laptop",
            source="GPT-2 small: 12 heads of 64, 512 tokens",
        ),
        Workload(
            name="bert_512",
            axes=_axes(1, 12, 1, 512, 512, 64),
            scale="laptop",
            source="BERT base: 12 heads of 64, 512 tokens, no mask",
        ),
        Workload(
            name="llama3_gqa_512",
            axes=_axes(1, 2, 4, 512, 512, 128),
            scalars=CAUSAL,
            scale="laptop",
            source="Llama 3 8B: a quarter of its 32 query heads over 8 key heads of 128, 512 tokens",
        ),
        Workload(
            name="one_head_2048",
            axes=_axes(1, 1, 2, 2048, 2048, 64),
            scalars=CAUSAL,
            scale="laptop",
            source="GPT-2's heads at 2048 tokens, two of them",
        ),
        *(
            workload
            for shape in ((16, 16, 1024), (4, 16, 4096), (1, 16, 16384))
            for head_dim in (64, 128)
            for workload in _published(*shape, head_dim)
        ),
        Workload(
            name="mistral_window_16k",
            axes=_axes(1, 8, 4, 16384, 16384, 128),
            scalars={"causal": True, "window_left": 4095},
            source="Mistral 7B: window of 4096, 16384 tokens",
        ),
        Workload(
            name="llama3_8b_8k",
            axes=_axes(1, 8, 4, 8192, 8192, 128),
            scalars=CAUSAL,
            source="Llama 3 8B: 32 query heads over 8 key heads of 128, 8192 tokens",
        ),
    ),
    implementations=("triton_twoloops", "triton_online", "cpp_blocked", "torch_eager"),
)
