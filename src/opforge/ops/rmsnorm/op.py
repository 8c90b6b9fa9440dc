"""rmsnorm over the last axis: y = x / sqrt(mean(x^2) + eps) * weight."""

from opforge.core.operator import Case, Law, Operator, Scalar, TensorSpec, Tolerance, Workload


def reference(x, weight, eps):
    return x * ((x * x).mean(dim=-1, keepdim=True) + eps).rsqrt() * weight


def bounded(inputs, outputs, scalars):
    # no element is larger than sqrt(n) root mean squares of its row; 2^-7 of y covers the rounding to bfloat16, the coarsest output
    y, weight = outputs["y"], inputs["weight"]
    excess = (y.abs() * (1 - 2.0**-7) - weight.abs() * y.shape[-1] ** 0.5).max().item()
    return None if excess <= 0 else f"|y| exceeds |weight| * sqrt(cols) by {excess:.3g}"


def signs_follow(inputs, outputs, scalars):
    against = (outputs["y"] * (inputs["x"] * inputs["weight"]) < 0).sum().item()
    return None if not against else f"{against} elements have the sign opposite to x * weight"


operator = Operator(
    name="rmsnorm",
    about="root-mean-square normalisation over the last axis, with weight",
    source="Zhang and Sennrich, Root Mean Square Layer Normalization, arXiv:1910.07467, 2019",
    inputs=(TensorSpec(name="x", shape="*lead cols"), TensorSpec(name="weight", shape="cols")),
    outputs=(TensorSpec(name="y", shape="*lead cols"),),
    scalars=(Scalar(name="eps", default=1e-6, about="added to the mean of squares"),),
    reference=reference,
    flops="4 * prod(lead) * cols",
    # Squares are positive, so their sum has a relative error and nothing cancels: with u the unit roundoff, the mean of squares is
    # off by u * sqrt(length), its inverse root by half of that, and two products add u each. The error scales with |y|, the default
    # magnitude. Rounding x / rms to float16 before the weight, as some models do, is one rounding more than allowed here.
    tolerance=Tolerance(
        length="cols / 32 + log2(max(cols, 2))",
        about="a sum is shared by at least 32 accumulators, so that cols / 32 terms follow one another",
    ),
    laws=(
        Law(name="bounded", about="|y| <= |weight| * sqrt(cols)", holds=bounded),
        Law(name="signs_follow", about="y has the sign of x * weight", holds=signs_follow),
    ),
    cases=(
        Case(name="one_row", axes={"lead": (1,), "cols": 64}, why="the smallest useful call"),
        Case(name="odd_tail", axes={"lead": (7,), "cols": 129}, why="one past a block of 128"),
        Case(name="prime", axes={"lead": (3, 5), "cols": 1021}, why="a prime width and two leading axes"),
        Case(name="past_one_warp", axes={"lead": (3,), "cols": 1025}, why="one past what a warp keeps in registers"),
        Case(name="qwen", axes={"lead": (9,), "cols": 896}, why="Qwen2.5 0.5B's width: no power of two, whole 16-byte vectors"),
        Case(name="one_column", axes={"lead": (5,), "cols": 1}, why="every result is the weight with the sign of x"),
        Case(name="many_narrow", axes={"lead": (130,), "cols": 8}, why="more rows than one program takes, each narrower than a warp"),
        Case(name="wide", axes={"lead": (2,), "cols": 50257}, why="past registers: the row waits in shared memory or is read again"),
        Case(name="wider", axes={"lead": (1,), "cols": 70001}, why="past the shared memory of a block"),
        Case(name="offset", axes={"lead": (4,), "cols": 333}, distribution="offset", why="the mean is not taken away: that is layernorm"),
        Case(name="large_values", axes={"lead": (4,), "cols": 500}, distribution="large", why="squares beyond float16's range"),
        Case(name="tiny_values", axes={"lead": (4,), "cols": 500}, distribution="tiny", why="eps outweighs the mean of squares"),
        Case(name="tiny_eps", axes={"lead": (4,), "cols": 500}, distribution="tiny", scalars={"eps": 1e-12}, why="eps must be the one that was passed"),
        Case(name="sparse", axes={"lead": (4,), "cols": 96}, distribution="sparse", why="zeros stay zero and still count in the mean"),
        Case(name="constant_rows", axes={"lead": (4,), "cols": 96}, distribution="constant_rows", why="every result is the weight with the sign of x"),
        # float16 alone: its largest value has a square that float32 holds; the square of float32's largest overflows
        Case(
            name="special",
            axes={"lead": (9,), "cols": 67},
            distribution="special",
            dtype="float16",
            why="NaN and infinities stay in their own rows and columns",
        ),
        Case(name="empty", axes={"lead": (0,), "cols": 16}, why="no rows at all"),
        Case(name="vector", axes={"lead": (), "cols": 100}, why="a vector: no leading axis"),
        Case(name="transposed", axes={"lead": (33,), "cols": 65}, layout="transposed", why="strides that are not row-major"),
        Case(name="sliced_rows", axes={"lead": (9,), "cols": 128}, layout="sliced", why="rows inside a wider matrix, off the 16-byte grid"),
        Case(name="misaligned", axes={"lead": (6,), "cols": 256}, layout="misaligned", why="16-byte loads would fault or read the neighbour"),
    ),
    workloads=(
        Workload(name="llama32_1b_prompt", axes={"lead": (1, 1024), "cols": 2048}, source="Llama 3.2 1B: hidden size 2048, a prompt of 1024", scale="laptop"),
        Workload(name="qwen25_05b_prompt", axes={"lead": (2, 1024), "cols": 896}, source="Qwen2.5 0.5B: hidden size 896, 2 prompts of 1024", scale="laptop"),
        Workload(name="llama3_8b", axes={"lead": (2, 8192), "cols": 4096}, source="Llama 3 8B: hidden size 4096, 2 contexts of 8192"),
        Workload(name="llama3_70b", axes={"lead": (8192,), "cols": 8192}, source="Llama 3 70B: hidden size 8192, one context of 8192"),
        Workload(name="qwen3_8b_heads", axes={"lead": (8192, 32), "cols": 128}, source="Qwen3 8B: the norm of 32 query heads of 128, 8192 tokens"),
    ),
    gradient="rmsnorm_backward",
    implementations=("cuda_persistent", "cuda_onchip", "triton_onchip", "tilelang_onepass", "cpp_twopass", "torch_eager"),
)
