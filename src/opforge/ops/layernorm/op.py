"""layernorm over the last axis: y = (x - mean) / sqrt(var + eps) * weight + bias."""

from opforge.core.operator import Case, Law, Operator, Scalar, TensorSpec, Tolerance, Workload


def reference(x, weight, bias, eps):
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = (centred * centred).mean(dim=-1, keepdim=True)
    return centred * (variance + eps).rsqrt() * weight + bias


def magnitude(inputs, outputs, scalars):
    # With u the unit roundoff and s = 1 / sqrt(var + eps), to first order in u:
    #   mean      sums x: off by u * mean|x|, which reaches y as |weight| * s * u * mean|x|
    #   x - mean  and the products after it: u * |x - mean| * s * |weight|
    #   var       sums squares of x - mean: relative error u, and s half of it; the error of the mean enters squared, because
    #             deviations add up to zero, and is left out
    #   + bias    u * (|weight * (x - mean) * s| + |bias|)
    # A variance taken as E[x^2] - E[x]^2 is off by u * mean(x^2): the mean over the standard deviation times more than allowed here.
    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
    centred = x - x.mean(dim=-1, keepdim=True)
    scale = ((centred * centred).mean(dim=-1, keepdim=True) + scalars["eps"]).rsqrt()
    return {"y": weight.abs() * scale * (x.abs().mean(dim=-1, keepdim=True) + centred.abs()) + bias.abs()}


def no_outlier_beyond_samuelson(inputs, outputs, scalars):
    # P. A. Samuelson, "How deviant can you be?", JASA 63, 1968: among n values none is further from the mean than sqrt(n - 1) deviations
    x, weight, bias, y = inputs["x"], inputs["weight"], inputs["bias"], outputs["y"]
    # 2^-8 of y is half an ulp of bfloat16, the coarsest output; the last term is the rounding of the float32 mean
    rounding = 2.0**-8 * (y.abs() + bias.abs()) + 2.0**-16 * magnitude(inputs, outputs, scalars)["y"]
    excess = ((y - bias).abs() - weight.abs() * (x.shape[-1] - 1) ** 0.5 - rounding).max().item()
    return None if excess <= 0 else f"|y - bias| exceeds |weight| * sqrt(cols - 1) by {excess:.3g}"


operator = Operator(
    name="layernorm",
    about="layer normalisation over the last axis, with weight and bias",
    source="Ba, Kiros and Hinton, Layer Normalization, arXiv:1607.06450, 2016",
    inputs=(
        TensorSpec(name="x", shape="*lead cols"),
        TensorSpec(name="weight", shape="cols"),
        TensorSpec(name="bias", shape="cols"),
    ),
    outputs=(TensorSpec(name="y", shape="*lead cols"),),
    scalars=(Scalar(name="eps", default=1e-5, about="added to the variance"),),
    reference=reference,
    flops="8 * prod(lead) * cols",
    # 32: a warp, or the lanes of a vector unit, share a sum; the partial sums meet in a tree
    tolerance=Tolerance(
        length="cols / 32 + log2(max(cols, 2))",
        magnitude=magnitude,
        about="a sum is shared by at least 32 accumulators, so that cols / 32 terms follow one another",
    ),
    laws=(Law(name="no_outlier_beyond_samuelson", about="|y - bias| <= |weight| * sqrt(cols - 1)", holds=no_outlier_beyond_samuelson),),
    cases=(
        Case(name="one_row", axes={"lead": (1,), "cols": 64}, why="the smallest useful call"),
        Case(name="odd_tail", axes={"lead": (7,), "cols": 129}, why="one past a block of 128"),
        Case(name="prime", axes={"lead": (3, 5), "cols": 1021}, why="a prime width and two leading axes"),
        Case(name="past_one_warp", axes={"lead": (3,), "cols": 1025}, why="one past what a warp keeps in registers"),
        Case(name="bert", axes={"lead": (9,), "cols": 768}, why="BERT's width: no power of two, whole 16-byte vectors"),
        Case(name="one_column", axes={"lead": (5,), "cols": 1}, why="the variance is 0 and every result is the bias"),
        Case(name="many_narrow", axes={"lead": (130,), "cols": 8}, why="more rows than one program takes, each narrower than a warp"),
        Case(name="wide", axes={"lead": (2,), "cols": 50257}, why="past registers: the row waits in shared memory or is read again"),
        Case(name="wider", axes={"lead": (1,), "cols": 70001}, why="past the shared memory of a block"),
        Case(name="offset", axes={"lead": (64,), "cols": 257}, distribution="offset", why="E[x^2] - E[x]^2 loses four digits here; two passes lose none"),
        Case(name="large_values", axes={"lead": (4,), "cols": 500}, distribution="large", why="squares beyond float16's range"),
        Case(name="tiny_values", axes={"lead": (4,), "cols": 500}, distribution="tiny", why="eps outweighs the variance"),
        Case(name="tiny_eps", axes={"lead": (4,), "cols": 500}, distribution="tiny", scalars={"eps": 1e-12}, why="eps must be the one that was passed"),
        Case(name="constant_rows", axes={"lead": (4,), "cols": 96}, distribution="constant_rows", why="no variance: eps alone keeps the division finite"),
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
        Workload(name="bert_base", axes={"lead": (4, 512), "cols": 768}, source="BERT-base: hidden size 768, 4 sequences of 512", scale="laptop"),
        Workload(name="gpt2_xl_prompt", axes={"lead": (1024,), "cols": 1600}, source="GPT-2 XL: d_model 1600, one context of 1024", scale="laptop"),
        Workload(name="bert_large", axes={"lead": (64, 512), "cols": 1024}, source="BERT-large: hidden size 1024, 64 sequences of 512"),
        Workload(name="gpt2_xl", axes={"lead": (16, 1024), "cols": 1600}, source="GPT-2 XL: d_model 1600, 16 contexts of 1024"),
        Workload(name="gpt3_175b", axes={"lead": (2, 2048), "cols": 12288}, source="GPT-3 175B: d_model 12288, 2 contexts of 2048"),
    ),
    gradient="layernorm_backward",
    implementations=("cuda_persistent", "cuda_onchip", "triton_onchip", "tilelang_twopass", "cpp_twopass", "torch_eager"),
)
