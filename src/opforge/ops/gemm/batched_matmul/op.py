"""Batched matrix product with the rest of BLAS's GEMM: y = alpha * a @ b + beta * c, for every matrix of a batch."""

from opforge.core.definition.likeness import Like
from opforge.core.operator import Case, Operator, Scalar, TensorSpec, Tolerance, Workload
from opforge.definitions.bounds.sums import few_ulps, finite
from opforge.definitions.precision import COMPUTE_DTYPE, FACTORS_HAVE_FLOAT32, PRECISION, matrix_errors
from opforge.definitions.torch_calls import batched


def reference(a, b, c, *, alpha, beta, precision):
    # beta = 0 forgets c, NaN included, as BLAS has it
    return alpha * (a @ b) + (beta * c if beta else 0)


def errors(inputs, outputs, scalars, dtype):
    product = matrix_errors(inputs["a"], inputs["b"], scalars["precision"], dtype).times(scalars["alpha"])
    scaled = scalars["alpha"] * (inputs["a"] @ inputs["b"])
    added = scalars["beta"] * inputs["c"] if scalars["beta"] else scaled.new_zeros(())
    return {"y": product + few_ulps(finite(scaled).abs() + finite(added).abs(), 2.0, 1.0)}


def rounded(inputs, outputs, scalars):
    # a library without this epilogue may store a @ b before it is scaled
    product = inputs["a"] @ inputs["b"]
    return {"y": (product, product.new_full((), abs(scalars["alpha"])).expand_as(product))}


def _axes(batch, m, n, k):
    return {"batch": batch, "m": m, "n": n, "k": k}


BOTH = {"alpha": 0.5, "beta": -2.0}
TF32 = {"precision": "tf32"}


def lower_matmul(input, other, *, out=None):
    """As torch.matmul: batches of one shape."""
    return "batched_matmul makes its result" if out is not None else batched(None, input, other, 0.0, 1.0)


def lower_bmm(input, mat2, *, out=None):
    """As torch.bmm."""
    return "bmm makes its result" if out is not None or input.ndim != 3 else batched(None, input, mat2, 0.0, 1.0)


def lower_baddbmm(input, batch1, batch2, *, beta=1, alpha=1, out=None):
    """As torch.baddbmm: beta input + alpha batch1 batch2, where nothing is broadcast."""
    if out is not None or getattr(batch1, "ndim", 0) != 3:
        return "baddbmm makes its result, of three axes"
    return batched(input, batch1, batch2, beta, alpha)


operator = Operator(
    name="batched_matmul",
    about="batched matrix product with scaling and accumulation: alpha * a @ b + beta * c",
    source="GEMM of the Level 3 BLAS: Dongarra et al., ACM TOMS 16(1), 1990",
    inputs=(
        TensorSpec(name="a", shape="*batch m k"),
        TensorSpec(name="b", shape="*batch k n"),
        TensorSpec(name="c", shape="*batch m n", about="not read when beta is 0"),
    ),
    outputs=(TensorSpec(name="y", shape="*batch m n"),),
    scalars=(
        Scalar(name="alpha", default=1.0, about="multiplies the product"),
        Scalar(name="beta", default=0.0, about="multiplies c; 0 forgets it, NaN included"),
        PRECISION,
    ),
    constraints=(FACTORS_HAVE_FLOAT32,),
    reference=reference,
    flops="2 * prod(batch) * m * n * k",
    bytes_read="prod(batch) * (m * k + k * n + m * n * (beta != 0)) * itemsize",
    bytes_saved="prod(batch) * m * n * itemsize * (2 * (alpha != 1 or beta != 0))",
    unit="matrix",
    compute_dtype=COMPUTE_DTYPE,
    tolerance=Tolerance(
        errors=errors,
        rounded=rounded,
    ),
    cases=(
        Case(name="one_block", axes=_axes((3,), 64, 64, 64), why="whole blocks everywhere: no mask is at work"),
        Case(name="accumulated", axes=_axes((2,), 48, 80, 96), scalars=BOTH, why="alpha and beta both at work"),
        Case(
            name="odd",
            axes=_axes((2, 3), 65, 63, 33),
            scalars=BOTH,
            why="two batch axes, one past and one short of a block",
        ),
        Case(
            name="past_a_block",
            axes=_axes((2,), 129, 136, 72),
            why="a second block of rows and columns with almost nothing in it",
        ),
        Case(name="one_matrix", axes=_axes((), 37, 41, 53), scalars=BOTH, why="no batch axis at all"),
        Case(name="many_small", axes=_axes((70,), 5, 7, 9), scalars=BOTH, why="matrices smaller than any block"),
        Case(name="vector_matrix", axes=_axes((4,), 1, 130, 77), why="m = 1: attention scores of one token"),
        Case(name="no_terms", axes=_axes((2,), 5, 9, 0), scalars=BOTH, why="k = 0: what remains is beta * c"),
        Case(name="no_matrices", axes=_axes((0,), 5, 9, 7), why="an empty batch"),
        Case(
            name="negative_alpha",
            axes=_axes((2,), 33, 40, 24),
            scalars={"alpha": -1.0, "beta": 1.0},
            why="a residual: c - a @ b",
        ),
        Case(
            name="offset",
            axes=_axes((2,), 34, 35, 60),
            distribution="offset",
            dtype="bfloat16",
            why="every product is positive: a bfloat16 accumulator stops growing (float16 overflows, as it must)",
        ),
        Case(
            name="transposed",
            axes=_axes((3,), 66, 70, 50),
            layout="transposed",
            scalars=BOTH,
            why="operands stored column by column",
        ),
        Case(
            name="sliced", axes=_axes((2,), 40, 72, 48), layout="sliced", scalars=BOTH, why="rows inside wider matrices"
        ),
        Case(
            name="expanded",
            axes=_axes((3,), 24, 32, 40),
            layout="expanded",
            why="one matrix for the whole batch: a stride of 0",
        ),
        Case(
            name="misaligned",
            axes=_axes((2,), 64, 72, 32),
            layout="misaligned",
            why="sizes invite vector loads, the address forbids them",
        ),
        Case(
            name="tf32_blocks",
            axes=_axes((2,), 64, 136, 96),
            dtype="float32",
            scalars=TF32,
            why="bfloat16 products would fall out of the bound",
        ),
        Case(
            name="tf32_odd",
            axes=_axes((2, 3), 65, 63, 33),
            dtype="float32",
            scalars={**BOTH, **TF32},
            why="k ends within an instruction's eight terms",
        ),
        Case(
            name="tf32_transposed",
            axes=_axes((3,), 68, 72, 52),
            layout="transposed",
            dtype="float32",
            scalars=TF32,
            why="terms of b are neighbours, those of a are not",
        ),
    ),
    workloads=(
        Workload(
            name="scores_gpt2",
            axes=_axes((12,), 256, 256, 64),
            scalars={"alpha": 0.125, "beta": 0.0},
            source="GPT-2 small: attention scores, 12 heads, 256 tokens",
            scale="laptop",
        ),
        Workload(
            name="scores_bert_large",
            axes=_axes((512,), 512, 512, 64),
            scalars={"alpha": 0.125, "beta": 0.0},
            source="BERT-large: attention scores, 32 sequences of 512, 16 heads",
        ),
        Workload(
            name="scores_bert_large_tf32",
            axes=_axes((512,), 512, 512, 64),
            scalars={"alpha": 0.125, "beta": 0.0, **TF32},
            source="BERT-large: attention scores, 32 sequences of 512, 16 heads, in TF32",
        ),
        Workload(
            name="experts_mixtral",
            axes=_axes((8,), 1024, 14336, 4096),
            source="Mixtral 8x7B: up projections of 8 experts, 1024 tokens each",
        ),
        Workload(
            name="accumulate_4096",
            axes=_axes((4,), 4096, 4096, 1024),
            scalars={"alpha": 1.0, "beta": 1.0},
            source="gradient accumulation of four 4096 x 4096 weights, 1024 tokens",
        ),
    ),
    implementations=("cuda_wgmma", "triton_tiled", "cuda_mma", "cpp_blocked", "torch_eager"),
    like=(
        Like(function="torch.matmul", lower=lower_matmul),
        Like(function="torch.bmm", lower=lower_bmm),
        Like(function="torch.baddbmm", lower=lower_baddbmm),
    ),
)
