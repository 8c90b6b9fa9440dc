"""log_softmax over the last axis: y = x - max(x) - log(sum(exp(x - max(x))))."""

from opforge.core.operator import Case, Law, Operator, TensorSpec, Tolerance, Workload


def reference(x):
    shifted = x - x.amax(dim=-1, keepdim=True)
    return shifted - shifted.exp().sum(dim=-1, keepdim=True).log()


def magnitude(inputs, outputs, scalars):
    x, y = inputs["x"], outputs["y"]
    shifted = (x - x.amax(dim=-1, keepdim=True)).abs()
    # an argument of exp carries an error of eps * |x - max|: on average over the terms that make the sum
    carried = (y.exp() * shifted).nan_to_num(nan=0.0).sum(dim=-1, keepdim=True)
    return {"y": (1 + shifted + y.abs() + carried).nan_to_num(nan=0.0, posinf=0.0)}


def exponentials_sum_to_one(inputs, outputs, scalars):
    y = outputs["y"]
    # rounding y to bfloat16 moves exp(y) by |y| / 512
    worst = (y.exp().sum(dim=-1) - 1).abs().max().item()
    allowed = 1 / 256 + y.abs().max().item() / 256
    return None if worst <= allowed else f"the exponentials of a row sum to 1 with an error of {worst:.3g}"


operator = Operator(
    name="log_softmax",
    about="log_softmax over the last axis",
    source="the logarithm of softmax (Bridle 1990), without forming softmax, which underflows",
    inputs=(TensorSpec(name="x", shape="*lead cols"),),
    outputs=(TensorSpec(name="y", shape="*lead cols"),),
    reference=reference,
    flops="4 * prod(lead) * cols",
    tolerance=Tolerance(length="cols", magnitude=magnitude),
    laws=(Law(name="exponentials_sum_to_one", about="logarithms of probabilities", holds=exponentials_sum_to_one),),
    cases=(
        Case(name="one_row", axes={"lead": (1,), "cols": 64}, why="the smallest useful call"),
        Case(name="odd_tail", axes={"lead": (7,), "cols": 129}, why="one past a block of 128"),
        Case(name="prime", axes={"lead": (3, 5), "cols": 1021}, why="a prime width and two leading axes"),
        Case(name="past_one_warp", axes={"lead": (3,), "cols": 1025}, why="one past what a warp keeps in registers"),
        Case(name="one_column", axes={"lead": (5,), "cols": 1}, why="every result is exactly 0"),
        Case(name="many_narrow", axes={"lead": (130,), "cols": 8}, why="more rows than one program takes, each narrower than a warp"),
        Case(name="wide", axes={"lead": (2,), "cols": 50257}, why="GPT-2's vocabulary: rows that begin off the 16-byte grid"),
        Case(name="wider", axes={"lead": (1,), "cols": 70001}, why="past 65536 elements, the most that one program holds"),
        Case(name="large_values", axes={"lead": (4,), "cols": 257}, distribution="large", why="exp overflows without the shift"),
        Case(name="tiny_values", axes={"lead": (4,), "cols": 257}, distribution="tiny", why="every result is close to -log(cols) and none is equal"),
        Case(name="offset", axes={"lead": (4,), "cols": 333}, distribution="offset", why="a common offset must cancel"),
        Case(name="constant_rows", axes={"lead": (4,), "cols": 96}, distribution="constant_rows", why="every result is -log(cols)"),
        Case(name="special", axes={"lead": (9,), "cols": 67}, distribution="special", why="NaN and +inf make their row NaN; -inf, a mask, stays"),
        Case(name="empty", axes={"lead": (0,), "cols": 16}, why="no rows at all"),
        Case(name="scalar_rank", axes={"lead": (), "cols": 100}, why="a vector: no leading axis"),
        Case(name="transposed", axes={"lead": (33,), "cols": 65}, layout="transposed", why="strides that are not row-major"),
        Case(name="sliced_rows", axes={"lead": (9,), "cols": 128}, layout="sliced", why="rows inside a wider matrix, off the 16-byte grid"),
        Case(name="misaligned", axes={"lead": (6,), "cols": 256}, layout="misaligned", why="16-byte loads would fault or read the neighbour"),
    ),
    workloads=(
        Workload(name="vocabulary_bert", axes={"lead": (64,), "cols": 30522}, source="BERT: the masked-language-model head, 64 masked tokens", scale="laptop"),
        Workload(name="vocabulary_gpt2", axes={"lead": (16,), "cols": 50257}, source="GPT-2: the language-model head, 16 tokens", scale="laptop"),
        Workload(name="vocabulary_llama2", axes={"lead": (2048,), "cols": 32000}, source="Llama 2: the language-model head, 2048 tokens"),
        Workload(name="vocabulary_llama3", axes={"lead": (512,), "cols": 128256}, source="Llama 3: the language-model head, 512 tokens"),
        Workload(name="classes_imagenet", axes={"lead": (65536,), "cols": 1000}, source="ImageNet: 1000 classes, 65536 pictures"),
    ),
    implementations=("cuda_onchip", "triton_onepass", "triton_online", "tilelang_onepass", "cpp_twopass", "torch_eager"),
    gradient="log_softmax_backward",
)
