"""A linear layer with its activation: y = activation(x @ w^T + bias)."""

from opforge.core.definition.likeness import Like, Lowered
from opforge.core.operator import Case, Operator, Scalar, TensorSpec, Tolerance, Workload
from opforge.definitions.activation import ACTIVATIONS, activated, linear_errors, slope
from opforge.definitions.torch_calls import unfit


def reference(x, w, bias, *, activation):
    return activated(x @ w.transpose(-1, -2) + bias, activation)


def errors(inputs, outputs, scalars, dtype):
    return {"y": linear_errors(inputs["x"], inputs["w"], inputs["bias"], scalars["activation"], dtype)}


def rounded(inputs, outputs, scalars):
    # a library without this epilogue stores x @ w^T + bias, and reads it back
    z = inputs["x"] @ inputs["w"].transpose(-1, -2) + inputs["bias"]
    return {"y": (z, slope(z, scalars["activation"]))}


def _axes(rows, n, k):
    return {"rows": rows, "n": n, "k": k}


def lower(input, weight, bias=None):
    """As torch.nn.functional.linear with a bias; without one it is a product, which matmul takes."""
    if bias is None:
        return "there is no bias"
    if reason := unfit(input, weight, bias):
        return reason
    if input.ndim == 0 or weight.ndim != 2 or input.shape[-1] != weight.shape[1] or bias.shape != weight.shape[:1]:
        return "the operands are not rows, a matrix and a bias that fit"
    return Lowered((input, weight, bias))


def lower_addmm(input, mat1, mat2, *, beta=1, alpha=1, out=None):
    """As torch.addmm: `input` is a bias, and both factors are 1."""
    if out is not None or beta != 1 or alpha != 1:
        return "linear makes its result, and multiplies nothing by beta and alpha"
    if reason := unfit(input, mat1, mat2):
        return reason
    if mat1.ndim != 2 or mat2.ndim != 2 or mat1.shape[1] != mat2.shape[0] or input.shape != mat2.shape[1:]:
        return "the operands are not rows, a matrix and a bias that fit"
    return Lowered((mat1, mat2.t(), input))


operator = Operator(
    name="linear",
    about="linear layer with bias and activation in one pass: activation(x @ w^T + bias)",
    source="the transformer's MLP (Vaswani et al. 2017); gelu by erf, silu as x * sigmoid(x)",
    inputs=(
        TensorSpec(name="x", shape="*rows k"),
        TensorSpec(
            name="w",
            shape="n k",
            about="as torch.nn.Linear keeps it; a k x n matrix is given as its transpose, without a copy",
        ),
        TensorSpec(name="bias", shape="n"),
    ),
    outputs=(TensorSpec(name="y", shape="*rows n"),),
    scalars=(Scalar(name="activation", default="none", choices=ACTIVATIONS, about="applied to x @ w^T + bias"),),
    reference=reference,
    flops="2 * prod(rows) * n * k",
    bytes_saved="2 * prod(rows) * n * itemsize * (activation != 'none')",
    unit="matrix",
    tolerance=Tolerance(
        errors=errors,
        rounded=rounded,
        about="products summed in float32; an unfused library rounds once more, before the activation",
    ),
    cases=(
        *(
            Case(
                name=f"odd_{activation}",
                axes=_axes((7, 9), 65, 33),
                scalars={"activation": activation},
                why=f"{activation}, one past and one short of blocks, two leading axes",
            )
            for activation in ACTIVATIONS
        ),
        *(
            Case(
                name=f"blocks_{activation}",
                axes=_axes((128,), 128, 64),
                scalars={"activation": activation},
                why=f"{activation}, whole blocks: no mask is at work",
            )
            for activation in ACTIVATIONS
        ),
        Case(
            name="past_a_block",
            axes=_axes((129,), 136, 72),
            scalars={"activation": "silu"},
            why="a second block of rows and columns with almost nothing in it",
        ),
        Case(name="one_row", axes=_axes((1,), 130, 77), why="decoding one token"),
        Case(name="one_column", axes=_axes((67,), 1, 90), why="n = 1: a single output, whose bias is one number"),
        Case(
            name="no_terms",
            axes=_axes((5,), 9, 0),
            scalars={"activation": "relu"},
            why="k = 0: what remains is the bias, activated",
        ),
        Case(name="no_rows", axes=_axes((0,), 9, 7), why="an empty result"),
        Case(name="scalar_rank", axes=_axes((), 24, 16), scalars={"activation": "silu"}, why="x is a vector"),
        Case(
            name="large",
            axes=_axes((9,), 40, 32),
            distribution="large",
            dtype="float32",
            scalars={"activation": "silu"},
            why="exp overflows unless it is asked the right way round",
        ),
        Case(
            name="large_gelu",
            axes=_axes((9,), 40, 32),
            distribution="large",
            dtype="bfloat16",
            scalars={"activation": "gelu"},
            why="erf saturates: the result is z or 0",
        ),
        Case(
            name="tiny",
            axes=_axes((9,), 40, 32),
            distribution="tiny",
            scalars={"activation": "gelu"},
            why="near 0 the activation halves",
        ),
        Case(
            name="transposed",
            axes=_axes((66,), 70, 50),
            layout="transposed",
            scalars={"activation": "relu"},
            why="x and w stored the other way round",
        ),
        Case(
            name="sliced",
            axes=_axes((40,), 72, 48),
            layout="sliced",
            why="rows inside wider matrices, starting one element in",
        ),
        Case(
            name="misaligned",
            axes=_axes((64,), 72, 32),
            layout="misaligned",
            scalars={"activation": "gelu"},
            why="sizes invite vector loads, the address forbids them",
        ),
    ),
    workloads=(
        Workload(
            name="mlp_gpt2",
            axes=_axes((256,), 3072, 768),
            scalars={"activation": "gelu"},
            source="GPT-2 small: first layer of the MLP, 256 tokens",
            scale="laptop",
        ),
        Workload(
            name="projection_gpt2",
            axes=_axes((512,), 768, 768),
            source="GPT-2 small: attention output projection, 512 tokens",
            scale="laptop",
        ),
        Workload(
            name="square_4096_silu",
            axes=_axes((4096,), 4096, 4096),
            scalars={"activation": "silu"},
            source="4096 cubed: what fused epilogues are quoted at",
        ),
        Workload(
            name="mlp_gate_llama3_8b",
            axes=_axes((4096,), 14336, 4096),
            scalars={"activation": "silu"},
            source="Llama 3 8B: MLP gate projection, 4096 tokens",
        ),
        Workload(
            name="mlp_up_gpt2_xl",
            axes=_axes((8192,), 6400, 1600),
            scalars={"activation": "gelu"},
            source="GPT-2 XL: first layer of the MLP, 8192 tokens",
        ),
        Workload(
            name="attention_out_llama3_8b",
            axes=_axes((16384,), 4096, 4096),
            source="Llama 3 8B: output projection, 16384 tokens",
        ),
    ),
    implementations=("triton_gluon", "cuda_wgmma", "triton_pipelined", "cuda_mma", "cpp_blocked", "torch_eager"),
    like=(
        Like(function="torch.nn.functional.linear", lower=lower),
        Like(function="torch.addmm", lower=lower_addmm),
    ),
    used=("language models",),
)
