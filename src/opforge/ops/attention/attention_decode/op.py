"""Attention of few queries a sequence against a paged cache of keys and values: the step that decoding repeats."""

from opforge.core.operator import Case, Law, Operator, TensorSpec, Tolerance
from opforge.definitions.attention.decode import (
    BYTES_READ,
    DECODE_CONSTRAINTS,
    DECODE_PARAMETERS,
    DECODE_WORKLOADS,
    FLOPS,
    INVARIANT,
    LEAST_LENGTH,
    decode_axes,
    decode_errors,
    decoded,
    poisoned,
)


def reference(q, k_pages, v_pages, block_table, lengths, **scalars):
    return decoded(q, k_pages, v_pages, block_table, lengths, scalars)


def errors(inputs, outputs, scalars, dtype):
    return decode_errors(inputs, outputs, scalars, dtype)


def follows(inputs, scalars):
    page, queries = inputs["k_pages"].shape[1], inputs["q"].shape[2]
    table, lengths = inputs["block_table"], inputs["lengths"]
    return {"block_table": poisoned(table, lengths, page, queries, scalars["window_left"])}


def inside_the_values(inputs, outputs, scalars):
    # weights are positive and sum to 1: no element is beyond the largest of its column; bfloat16 rounds by 1/256
    v, out = inputs["v_pages"].abs().amax(dim=(0, 1)), outputs["out"].abs()
    if not out.numel():
        return None
    most = v.repeat_interleave(out.shape[1] // v.shape[0], dim=0).unsqueeze(1)
    over = (out - most * (1 + 1 / 64)).amax().item()
    return None if over <= 1e-30 else f"an element is {over:.3g} beyond the largest value of its column"


def nothing_to_see(inputs, outputs, scalars):
    # query i of n stands at position length - n + i: before the first key it sees none
    queries = outputs["lse"].shape[2]
    places = inputs["lengths"].unsqueeze(-1) - queries + inputs["lengths"].new_ones(queries).cumsum(0) - 1
    blind = (places < 0).unsqueeze(1).expand_as(outputs["lse"])
    if (outputs["lse"][blind] != -float("inf")).any() or (outputs["out"][blind] != 0).any():
        return "a query that sees no key has a result other than 0, or a log-sum-exp other than -inf"
    return None


operator = Operator(
    name="attention_decode",
    about="attention of up to 16 queries a sequence against the pages of a cache, and its log-sum-exp",
    source="Kwon et al., PagedAttention, arXiv:2309.06180; Dao et al., Flash-Decoding, 2023",
    inputs=(
        TensorSpec(name="q", shape="batch kv_heads*group queries head_dim"),
        TensorSpec(
            name="k_pages", shape="pages page kv_heads head_dim", about="head h of q reads head h // group of the pages"
        ),
        TensorSpec(name="v_pages", shape="pages page kv_heads value_dim"),
        TensorSpec(
            name="block_table",
            shape="batch max_pages",
            dtype="int32",
            below="pages",
            distinct=True,
            about="key j of sequence b is row j % page of page block_table[b, j // page]; entries that no query "
            "sees may hold anything",
        ),
        TensorSpec(
            name="lengths",
            shape="batch",
            dtype="int32",
            least=LEAST_LENGTH,
            below="max_pages * page + 1",
            sometimes=("min(page, max_pages * page)", "max_pages * page - page + 1", "max_pages * page - 1"),
            about="keys of each sequence, the last query's own among them; 0 for none",
        ),
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
    scalars=DECODE_PARAMETERS,
    constraints=DECODE_CONSTRAINTS,
    reference=reference,
    follows=follows,
    differentiable=("q", "k_pages", "v_pages"),
    flops=FLOPS,
    bytes_read=BYTES_READ,
    unit="matrix",
    tolerance=Tolerance(
        errors=errors,
        # where scores are small, the queries that share a head of keys average the same values with the same weights
        shared="group * queries",
        about="scores and sums in float32; weights may be rounded to the dtype before they meet v",
    ),
    laws=(
        Law(name="inside_the_values", about="an average of values is none beyond them", holds=inside_the_values),
        Law(name="nothing_to_see", about="a query before the first key gives 0 and -inf", holds=nothing_to_see),
    ),
    cases=(
        Case(name="pages_of_16", axes=decode_axes(3, 2, 4, 1, 64, 16, 6), why="GQA, one query, pages in any order"),
        Case(
            name="every_remainder", axes=decode_axes(40, 1, 1, 1, 16, 4, 3), why="lengths % page of every value, and 0"
        ),
        Case(name="one_page", axes=decode_axes(24, 1, 2, 1, 16, 8, 1), why="lengths from 0 to a whole page"),
        Case(
            name="shared_pages",
            axes=decode_axes(4, 1, 4, 1, 32, 16, 4, pages=5),
            why="sequences share pages, as those with one prompt do; pages repeat inside a sequence too",
        ),
        Case(
            name="one_page_for_all",
            axes=decode_axes(3, 2, 1, 1, 32, 16, 3, pages=1),
            why="the same keys, again and again",
        ),
        Case(name="contiguous", axes=decode_axes(3, 2, 4, 1, 64, 150, 1), why="a page a sequence: a contiguous cache"),
        Case(name="mha", axes=decode_axes(2, 4, 1, 1, 64, 16, 5), why="group 1: one row a tile"),
        Case(name="group_8", axes=decode_axes(2, 2, 8, 1, 128, 16, 5), why="Llama 3 70B's groups of 8"),
        Case(name="mqa", axes=decode_axes(2, 1, 20, 1, 64, 16, 4), why="more rows than a tile of 16 has"),
        Case(
            name="several_queries",
            axes=decode_axes(4, 2, 4, 4, 64, 16, 5),
            why="speculative decoding: causal among the last four; some sequences are shorter than that",
        ),
        Case(name="sixteen_queries", axes=decode_axes(5, 1, 3, 16, 32, 8, 4), why="as many queries as there may be"),
        Case(name="dims_192_128", axes=decode_axes(2, 1, 4, 2, 192, 16, 5, value_dim=128), why="DeepSeek's dimensions"),
        Case(name="dim_256", axes=decode_axes(2, 1, 2, 1, 256, 16, 3), why="Gemma's 256"),
        Case(
            name="odd",
            axes=decode_axes(3, 2, 3, 2, 33, 5, 7, value_dim=17),
            why="no vector divides rows, nor a tile pages",
        ),
        Case(name="page_of_one", axes=decode_axes(3, 1, 2, 1, 16, 1, 70), why="each key has a page of its own"),
        Case(name="large_pages", axes=decode_axes(2, 1, 4, 1, 32, 128, 3), why="pages larger than a tile"),
        Case(name="several_splits", axes=decode_axes(3, 1, 2, 1, 32, 16, 44), why="keys are split over programs"),
        Case(
            name="invariant",
            axes=decode_axes(3, 1, 2, 1, 32, 16, 44),
            scalars=INVARIANT,
            why="keys are split by the sequence's own length",
        ),
        Case(
            name="window",
            axes=decode_axes(5, 2, 2, 1, 32, 16, 9),
            scalars={"window_left": 36},
            why="pages before the window are not read",
        ),
        Case(
            name="window_of_queries",
            axes=decode_axes(5, 1, 2, 5, 32, 16, 6),
            scalars={"window_left": 3},
            why="no key is seen by all queries",
        ),
        Case(
            name="itself_alone",
            axes=decode_axes(4, 1, 2, 3, 16, 8, 5),
            scalars={"window_left": 0},
            why="each query sees one key: out is v, lse the score",
        ),
        Case(
            name="window_invariant",
            axes=decode_axes(4, 1, 2, 2, 32, 16, 40),
            scalars={"window_left": 300, **INVARIANT},
            why="a window is split by its own length, not by the sequence's",
        ),
        Case(
            name="softcap",
            axes=decode_axes(3, 2, 2, 2, 64, 16, 5),
            scalars={"softcap": 2.0},
            why="Gemma 2's cap, low enough to bend most scores",
        ),
        Case(
            name="wide_scale",
            axes=decode_axes(3, 1, 2, 1, 32, 16, 20),
            scalars={"scale": 3.0},
            why="sharp rows: splits differ by many powers of two",
        ),
        Case(
            name="negative_scale",
            axes=decode_axes(2, 1, 2, 1, 32, 16, 5),
            scalars={"scale": -0.5},
            why="the largest score is that of the smallest product",
        ),
        Case(name="tiny", axes=decode_axes(2, 1, 2, 1, 32, 16, 5), distribution="tiny", why="all weights are alike"),
        Case(name="zeros", axes=decode_axes(3, 1, 2, 1, 32, 16, 5), distribution="zeros", why="lse is log(length)"),
        Case(name="no_batch", axes=decode_axes(0, 2, 1, 1, 16, 16, 2, pages=3), why="nothing to do"),
        Case(name="no_queries", axes=decode_axes(2, 2, 1, 0, 16, 16, 2), why="nothing to do, some keys"),
        Case(name="sliced", axes=decode_axes(3, 2, 2, 2, 32, 16, 5), layout="sliced", why="rows inside a wider tensor"),
        Case(
            name="transposed", axes=decode_axes(3, 2, 2, 2, 32, 16, 5), layout="transposed", why="dimensions lie apart"
        ),
        Case(
            name="misaligned",
            axes=decode_axes(3, 2, 2, 1, 64, 16, 5),
            layout="misaligned",
            why="sizes invite vector loads, the address forbids them",
        ),
    ),
    workloads=DECODE_WORKLOADS,
    implementations=(
        "cuda_splitkv",
        "triton_splitkv",
        "cpp_blocked",
        "torch_eager",
        "torch_definition",
    ),
)
