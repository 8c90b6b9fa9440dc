"""softmax over the last axis: y = exp(x - max(x)) / sum(exp(x - max(x)))."""

from opforge.core.operator import Case, Law, Operator, TensorSpec, Tolerance, Workload


def reference(x):
    shifted = (x - x.amax(dim=-1, keepdim=True)).exp()
    return shifted / shifted.sum(dim=-1, keepdim=True)


def magnitude(inputs, outputs, scalars):
    # an argument of exp carries an error of eps * |x - max|, which exp turns into a relative error of the result
    x, y = inputs["x"], outputs["y"]
    relative = 1 + (x - x.amax(dim=-1, keepdim=True)).abs()
    # exp(-inf) is exactly 0: no error, where 0 * inf would say NaN
    return {"y": (y * relative).nan_to_num(nan=0.0)}


def rows_sum_to_one(inputs, outputs, scalars):
    y = outputs["y"]
    # each element is rounded to the output dtype: at worst all in one direction, by half an ulp
    worst = (y.sum(dim=-1) - 1).abs().max().item()
    return None if worst <= 1 / 256 else f"a row sums to 1 with an error of {worst:.3g}"


operator = Operator(
    name="softmax",
    about="softmax over the last axis",
    source="Bridle 1990; the shift by the row's maximum keeps exp from overflowing",
    inputs=(TensorSpec(name="x", shape="*lead cols"),),
    outputs=(TensorSpec(name="y", shape="*lead cols"),),
    reference=reference,
    flops="5 * prod(lead) * cols",
    tolerance=Tolerance(length="cols", magnitude=magnitude),
    laws=(Law(name="rows_sum_to_one", about="probabilities", holds=rows_sum_to_one),),
    cases=(
        Case(name="one_row", axes={"lead": (1,), "cols": 64}, why="the smallest useful call"),
        Case(name="odd_tail", axes={"lead": (7,), "cols": 129}, why="one past a block of 128"),
        Case(name="prime", axes={"lead": (3, 5), "cols": 1021}, why="a prime width and two leading axes"),
        Case(name="past_one_warp", axes={"lead": (3,), "cols": 1025}, why="one past what a warp keeps in registers"),
        Case(name="one_column", axes={"lead": (5,), "cols": 1}, why="every result is exactly 1"),
        Case(name="many_narrow", axes={"lead": (130,), "cols": 8}, why="more rows than one program takes, each narrower than a warp"),
        Case(name="wide", axes={"lead": (2,), "cols": 50257}, why="GPT-2's vocabulary: zeros would pass a fixed tolerance of 1e-3"),
        Case(name="wider", axes={"lead": (1,), "cols": 70001}, why="past 65536 elements, the most that one program holds"),
        Case(name="large_values", axes={"lead": (4,), "cols": 257}, distribution="large", why="exp overflows without the shift"),
        Case(name="tiny_values", axes={"lead": (4,), "cols": 257}, distribution="tiny", why="every result is close to 1/cols and none is equal"),
        Case(name="offset", axes={"lead": (4,), "cols": 333}, distribution="offset", why="a common offset must cancel"),
        Case(name="constant_rows", axes={"lead": (4,), "cols": 96}, distribution="constant_rows", why="every result is 1/cols"),
        Case(name="special", axes={"lead": (9,), "cols": 67}, distribution="special", why="NaN and +inf make their row NaN; -inf, a mask, makes a 0"),
        Case(name="empty", axes={"lead": (0,), "cols": 16}, why="no rows at all"),
        Case(name="scalar_rank", axes={"lead": (), "cols": 100}, why="a vector: no leading axis"),
        Case(name="transposed", axes={"lead": (33,), "cols": 65}, layout="transposed", why="strides that are not row-major"),
        Case(name="sliced_rows", axes={"lead": (9,), "cols": 128}, layout="sliced", why="rows inside a wider matrix, off the 16-byte grid"),
        Case(name="misaligned", axes={"lead": (6,), "cols": 256}, layout="misaligned", why="16-byte loads would fault or read the neighbour"),
    ),
    workloads=(
        Workload(name="attention_gpt2", axes={"lead": (12, 256), "cols": 256}, source="GPT-2 small: 12 heads, a window of 256", scale="laptop"),
        Workload(name="vocabulary_gpt2", axes={"lead": (16,), "cols": 50257}, source="GPT-2: the language-model head, 16 tokens", scale="laptop"),
        Workload(name="attention_llama3_8b", axes={"lead": (32, 2048), "cols": 2048}, source="Llama 3 8B: 32 heads, a context of 2048"),
        Workload(name="vocabulary_llama3", axes={"lead": (512,), "cols": 128256}, source="Llama 3: the language-model head, 512 tokens"),
        Workload(name="attention_bert_large", axes={"lead": (32, 16, 512), "cols": 512}, source="BERT-large: 16 heads, 32 sequences of 512"),
    ),
    implementations=("cuda_onchip", "cuda_block", "triton_onepass", "triton_online", "tilelang_onepass", "cpp_twopass", "torch_eager"),
    gradient="softmax_backward",
)
