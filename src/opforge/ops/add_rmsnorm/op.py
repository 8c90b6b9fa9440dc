"""Residual addition and rmsnorm in one: sum = x + residual, y = sum / sqrt(mean(sum^2) + eps) * weight; both are results."""

from opforge.core.operator import Case, Law, Operator, Scalar, TensorSpec, Tolerance, Workload


def reference(x, residual, weight, eps):
    total = x + residual
    return total * ((total * total).mean(dim=-1, keepdim=True) + eps).rsqrt() * weight, total


def magnitude(inputs, outputs, scalars):
    # the sum is one operation, with a relative error; what follows is rmsnorm, whose errors scale with the result
    return {"y": outputs["y"].abs(), "total": outputs["total"].abs()}


def rounded(inputs, outputs, scalars):
    # The sum may be rounded to the output dtype before it is normalised, as when the two operations are separate. That moves each
    # element by half an ulp, and the mean of squares by what n such errors of random signs add up to: relative to one of them,
    # sqrt(sum(t^4)) / sum(t^2), and three times that: half an ulp may be twice as large elsewhere, and many rows are looked at.
    total = outputs["total"]
    squares = total * total
    scale = (squares.mean(dim=-1, keepdim=True) + scalars["eps"]).rsqrt()
    concentration = (squares * squares).sum(dim=-1, keepdim=True).sqrt() / squares.sum(dim=-1, keepdim=True)
    # a row of zeros, or one with an infinity, has none
    return {"y": (total, scale * inputs["weight"] * (1 + 3 * concentration.nan_to_num(nan=0.0, posinf=0.0)))}


def bounded(inputs, outputs, scalars):
    # no element is larger than sqrt(n) root mean squares of its row; 2^-6 of y covers two roundings to bfloat16, the coarsest output
    y, weight = outputs["y"], inputs["weight"]
    excess = (y.abs() * (1 - 2.0**-6) - weight.abs() * y.shape[-1] ** 0.5).max().item()
    return None if excess <= 0 else f"|y| exceeds |weight| * sqrt(cols) by {excess:.3g}"


def total_is_the_sum(inputs, outputs, scalars):
    exact = inputs["x"] + inputs["residual"]
    # 2^-8: half an ulp of bfloat16; 2^-25: of float16's subnormals
    wrong = ((outputs["total"] - exact).abs() > 2.0**-8 * exact.abs() + 2.0**-25).sum().item()
    return None if not wrong else f"{wrong} elements of total are not x + residual"


operator = Operator(
    name="add_rmsnorm",
    about="residual addition and root-mean-square normalisation over the last axis: y and the new residual",
    source="Zhang and Sennrich, Root Mean Square Layer Normalization, arXiv:1910.07467, 2019; the fusion is that of vLLM's fused_add_rms_norm",
    inputs=(TensorSpec(name="x", shape="*lead cols"), TensorSpec(name="residual", shape="*lead cols"), TensorSpec(name="weight", shape="cols")),
    outputs=(TensorSpec(name="y", shape="*lead cols"), TensorSpec(name="total", shape="*lead cols", about="x + residual, the next layer's residual")),
    scalars=(Scalar(name="eps", default=1e-6, about="added to the mean of squares"),),
    reference=reference,
    flops="5 * prod(lead) * cols",
    tolerance=Tolerance(
        length="cols / 32 + log2(max(cols, 2))",
        magnitude=magnitude,
        rounded=rounded,
        about="as rmsnorm; the sum may be rounded to the output dtype first",
    ),
    laws=(
        Law(name="bounded", about="|y| <= |weight| * sqrt(cols)", holds=bounded),
        Law(name="total_is_the_sum", about="total = x + residual", holds=total_is_the_sum),
    ),
    cases=(
        Case(name="one_row", axes={"lead": (1,), "cols": 64}, why="the smallest useful call"),
        Case(name="odd_tail", axes={"lead": (7,), "cols": 129}, why="one past a block of 128"),
        Case(name="prime", axes={"lead": (3, 5), "cols": 1021}, why="a prime width and two leading axes"),
        Case(name="past_one_warp", axes={"lead": (3,), "cols": 1025}, why="one past what a warp keeps in registers"),
        Case(name="qwen", axes={"lead": (9,), "cols": 896}, why="Qwen2.5 0.5B's width: no power of two, whole 16-byte vectors"),
        Case(name="one_column", axes={"lead": (5,), "cols": 1}, why="every result is the weight with the sign of the sum"),
        Case(name="many_narrow", axes={"lead": (130,), "cols": 8}, why="more rows than one program takes, each narrower than a warp"),
        Case(name="wide", axes={"lead": (2,), "cols": 20001}, why="a wide row of odd length"),
        Case(name="wider", axes={"lead": (1,), "cols": 70001}, why="past the shared memory of a block"),
        Case(name="large_values", axes={"lead": (4,), "cols": 500}, distribution="large", why="squares beyond float16's range"),
        Case(name="tiny_values", axes={"lead": (4,), "cols": 500}, distribution="tiny", why="eps outweighs the mean of squares"),
        Case(name="tiny_eps", axes={"lead": (4,), "cols": 500}, distribution="tiny", scalars={"eps": 1e-12}, why="eps must be the one that was passed"),
        Case(name="sparse", axes={"lead": (4,), "cols": 96}, distribution="sparse", why="zeros stay zero and still count in the mean"),
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
        Workload(name="llama31_405b", axes={"lead": (8192,), "cols": 16384}, source="Llama 3.1 405B: hidden size 16384, one context of 8192"),
    ),
    implementations=("cuda_persistent", "triton_onchip", "tilelang_onepass", "cpp_onepass", "torch_eager"),
)
