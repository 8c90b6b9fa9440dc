"""The gradient of softmax over the last axis: dx = y * (dy - sum(y * dy)), y being what softmax returned."""

from opforge.core.operator import Case, Law, Operator, TensorSpec, Tolerance, Workload


def reference(y, dy):
    return y * (dy - (y * dy).sum(dim=-1, keepdim=True))


def magnitude(inputs, outputs, scalars):
    y, dy = inputs["y"], inputs["dy"]
    terms = y * dy
    # partial sums of terms with random signs grow like the root of the sum of squares, those of terms with one sign like the sum
    partial = terms.sum(dim=-1, keepdim=True).abs() + terms.square().sum(dim=-1, keepdim=True).sqrt()
    # 0 * inf would say NaN of an element whose bound is not asked for
    return {"dx": (y.abs() * (dy.abs() + partial)).nan_to_num(nan=0.0)}


def unmoved_where_nothing_flows(inputs, outputs, scalars):
    # a y of zero, which a mask of -inf gives, passes nothing on
    moved = outputs["dx"][inputs["y"] == 0].abs()
    return None if not moved.numel() or moved.max().item() == 0 else f"dx is {moved.max().item():.3g} where y is 0"


operator = Operator(
    name="softmax_backward",
    about="the gradient of softmax over the last axis, from its result",
    source="the Jacobian of softmax is diag(y) - y y^T; Bridle 1990",
    inputs=(TensorSpec(name="y", shape="*lead cols", about="what softmax returned"), TensorSpec(name="dy", shape="*lead cols", about="the gradient of y")),
    outputs=(TensorSpec(name="dx", shape="*lead cols"),),
    reference=reference,
    flops="4 * prod(lead) * cols",
    tolerance=Tolerance(length="cols", magnitude=magnitude),
    laws=(Law(name="zero_passes_nothing", about="dx is 0 where y is 0", holds=unmoved_where_nothing_flows),),
    cases=(
        Case(name="one_row", axes={"lead": (1,), "cols": 64}, why="the smallest useful call"),
        Case(name="odd_tail", axes={"lead": (7,), "cols": 129}, why="one past a block of 128"),
        Case(name="prime", axes={"lead": (3, 5), "cols": 1021}, why="a prime width and two leading axes"),
        Case(name="past_one_warp", axes={"lead": (3,), "cols": 2056}, why="past what a warp keeps in registers, in whole 16-byte vectors"),
        Case(name="one_column", axes={"lead": (5,), "cols": 1}, why="a single term in each sum"),
        Case(name="many_narrow", axes={"lead": (130,), "cols": 8}, why="more rows than one program takes, each narrower than a warp"),
        Case(name="wide", axes={"lead": (2,), "cols": 50257}, why="GPT-2's vocabulary: rows that begin off the 16-byte grid"),
        Case(name="wider", axes={"lead": (2,), "cols": 65544}, why="past 65536 elements, in whole 16-byte vectors"),
        Case(name="large_values", axes={"lead": (4,), "cols": 257}, distribution="large", why="products of 40000 times 200"),
        Case(name="tiny_values", axes={"lead": (4,), "cols": 257}, distribution="tiny", why="products of tiny values"),
        Case(name="offset", axes={"lead": (4,), "cols": 333}, distribution="offset", why="a sum much larger than any term"),
        Case(name="special", axes={"lead": (9,), "cols": 67}, distribution="special", why="NaN and infinities reach their whole row"),
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
    implementations=("cuda_onchip", "triton_onepass", "triton_twopass", "tilelang_onepass", "cpp_twopass", "torch_eager"),
)
