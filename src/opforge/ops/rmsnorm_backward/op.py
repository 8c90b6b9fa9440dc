"""Gradients of rmsnorm: dx and dweight from x, weight and dy; the mean of squares is taken from x again."""

from opforge.core.operator import Case, Law, Operator, Scalar, TensorSpec, Tolerance, Workload


def reference(x, weight, dy, eps):
    scale = ((x * x).mean(dim=-1, keepdim=True) + eps).rsqrt()
    h = x * scale
    g = weight * dy
    dx = (g - h * (g * h).mean(dim=-1, keepdim=True)) * scale
    return dx, (dy * h).reshape(-1, x.shape[-1]).sum(dim=0)


def magnitude(inputs, outputs, scalars):
    # squares are positive, so h = x / rms has a relative error; dx adds up g and h * mean(g * h), dweight the products dy * h
    x, weight, dy = inputs["x"], inputs["weight"], inputs["dy"]
    scale = ((x * x).mean(dim=-1, keepdim=True) + scalars["eps"]).rsqrt()
    h, g = (x * scale).abs(), (weight * dy).abs()
    terms = g + h * (g * h).mean(dim=-1, keepdim=True)
    return {"dx": terms * scale, "dweight": (dy.abs() * h).reshape(-1, x.shape[-1]).sum(dim=0)}


def scaling_moves_little(inputs, outputs, scalars):
    if not inputs["x"].numel():
        return None
    # sum(x * dx) = sum(g * h) * eps / (mean(x^2) + eps): were it not for eps, y would not change when a row is multiplied by a constant
    x, dx, eps = inputs["x"], outputs["dx"], scalars["eps"]
    squares = (x * x).mean(dim=-1)
    g = inputs["weight"] * inputs["dy"]
    expected = (g * x).sum(dim=-1) * (squares + eps).rsqrt() * eps / (squares + eps)
    size = magnitude(inputs, outputs, scalars)["dx"]
    # 2^-8: each element is rounded to the output dtype, bfloat16 at the coarsest; 2^-25: to float16's subnormals
    slack = 2.0**-8 * (x * dx).abs().sum(dim=-1) + (x.abs() * (2.0**-14 * size + 2.0**-25)).sum(dim=-1)
    excess = (((x * dx).sum(dim=-1) - expected).abs() - slack).max().item()
    return None if excess <= 0 else f"sum(x * dx) of a row is off by {excess:.3g} more than rounding explains"


operator = Operator(
    name="rmsnorm_backward",
    about="gradients of root-mean-square normalisation over the last axis",
    source="Zhang and Sennrich, Root Mean Square Layer Normalization, arXiv:1910.07467, 2019; the chain rule, with the mean of squares as a function of x",
    inputs=(
        TensorSpec(name="x", shape="*lead cols"),
        TensorSpec(name="weight", shape="cols"),
        TensorSpec(name="dy", shape="*lead cols"),
    ),
    outputs=(TensorSpec(name="dx", shape="*lead cols"), TensorSpec(name="dweight", shape="cols")),
    scalars=(Scalar(name="eps", default=1e-6, about="added to the mean of squares, as in the forward pass"),),
    reference=reference,
    flops="12 * prod(lead) * cols",
    # cols / 32: as in the forward pass; rows: the sums of dweight may follow one another
    tolerance=Tolerance(
        length="cols / 32 + log2(max(cols, 2)) + prod(lead)",
        magnitude=magnitude,
        about="a row's sums are shared by at least 32 accumulators; a column's may be added one after another",
    ),
    laws=(Law(name="scaling_moves_little", about="sum(x * dx) is what eps alone explains", holds=scaling_moves_little),),
    cases=(
        Case(name="one_row", axes={"lead": (1,), "cols": 64}, why="the smallest useful call"),
        Case(name="odd_tail", axes={"lead": (7,), "cols": 129}, why="one past a block of 128"),
        Case(name="prime", axes={"lead": (3, 5), "cols": 1021}, why="a prime width and two leading axes"),
        Case(name="past_one_warp", axes={"lead": (3,), "cols": 1025}, why="one past what a warp keeps in registers"),
        Case(name="qwen", axes={"lead": (9,), "cols": 896}, why="Qwen2.5 0.5B's width: no power of two, and whole 16-byte vectors"),
        Case(name="phi", axes={"lead": (5,), "cols": 3072}, why="Phi-3 mini's width: vectors that leave part of a warp idle"),
        Case(name="block", axes={"lead": (4,), "cols": 4096}, why="a row shared by a block, its sums in shared memory"),
        Case(name="one_column", axes={"lead": (5,), "cols": 1}, scalars={"eps": 0.5}, why="y is close to the sign of x: dx is what eps leaves"),
        Case(name="many_narrow", axes={"lead": (130,), "cols": 8}, why="more rows than one program takes, each narrower than a warp"),
        Case(name="many_rows", axes={"lead": (1031,), "cols": 96}, why="sums over a prime number of rows, more than any grid has groups here"),
        Case(name="wide", axes={"lead": (2,), "cols": 16383}, why="a wide row of odd length"),
        Case(name="offset", axes={"lead": (64,), "cols": 257}, distribution="offset", why="the mean is not taken away: that is layernorm"),
        Case(name="large_values", axes={"lead": (4,), "cols": 500}, distribution="large", why="squares beyond float16's range"),
        Case(name="tiny_values", axes={"lead": (4,), "cols": 500}, distribution="tiny", why="eps outweighs the mean of squares"),
        Case(name="tiny_eps", axes={"lead": (4,), "cols": 500}, scalars={"eps": 1e-12}, why="eps must be the one that was passed"),
        Case(name="sparse", axes={"lead": (33,), "cols": 96}, distribution="sparse", why="mostly zeros: dweight has few terms"),
        Case(name="empty", axes={"lead": (0,), "cols": 16}, why="no rows: sums of nothing, which are 0"),
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
    implementations=("cuda_persistent", "triton_persistent", "cpp_rows", "torch_eager"),
)
