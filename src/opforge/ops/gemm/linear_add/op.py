"""A linear layer whose result joins a residual stream: y = activation(x @ w^T + bias) + residual."""

from opforge.core.operator import Case, Operator, Scalar, TensorSpec, Tolerance, Workload
from opforge.definitions.activation import ACTIVATIONS, activated, linear_errors, stored_below_normal, stored_between
from opforge.definitions.bounds.sums import few_ulps, finite


def reference(x, w, bias, residual, *, activation):
    return activated(x @ w.transpose(-1, -2) + bias, activation) + residual


def errors(inputs, outputs, scalars, dtype):
    activation = scalars["activation"]
    before = linear_errors(inputs["x"], inputs["w"], inputs["bias"], activation, dtype)
    before = before + stored_below_normal(activation, dtype)
    return {"y": before + few_ulps(finite(inputs["residual"]).abs(), 2.0, 1.0)}


def rounded(inputs, outputs, scalars):
    # a library without this epilogue stores what comes before the activation and what comes before the sum
    z = inputs["x"] @ inputs["w"].transpose(-1, -2) + inputs["bias"]
    return {"y": (z, stored_between(z, scalars["activation"]))}


def _axes(rows, n, k):
    return {"rows": rows, "n": n, "k": k}


operator = Operator(
    name="linear_add",
    about="linear layer with bias, activation and residual in one pass: activation(x @ w^T + bias) + residual",
    source="the transformer's residual stream (Vaswani et al. 2017); gelu by erf, silu as x * sigmoid(x)",
    inputs=(
        TensorSpec(name="x", shape="*rows k"),
        TensorSpec(
            name="w",
            shape="n k",
            about="as torch.nn.Linear keeps it; a k x n matrix is given as its transpose, without a copy",
        ),
        TensorSpec(name="bias", shape="n"),
        TensorSpec(name="residual", shape="*rows n"),
    ),
    outputs=(TensorSpec(name="y", shape="*rows n"),),
    scalars=(
        Scalar(
            name="activation",
            default="none",
            choices=ACTIVATIONS,
            about="applied to x @ w^T + bias, before the residual is added",
        ),
    ),
    reference=reference,
    flops="2 * prod(rows) * n * k",
    bytes_saved="2 * prod(rows) * n * itemsize * (1 + (activation != 'none'))",
    unit="matrix",
    tolerance=Tolerance(
        errors=errors,
        rounded=rounded,
        about="products summed in float32; an unfused library rounds before the activation and before the sum",
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
        Case(name="blocks", axes=_axes((128,), 128, 64), why="whole blocks: no mask is at work"),
        Case(
            name="past_a_block",
            axes=_axes((129,), 136, 72),
            scalars={"activation": "silu"},
            why="a second block of rows and columns with almost nothing in it",
        ),
        Case(name="one_row", axes=_axes((1,), 130, 77), why="decoding one token"),
        Case(name="one_column", axes=_axes((67,), 1, 90), why="n = 1: a residual whose both strides look contiguous"),
        Case(
            name="no_terms",
            axes=_axes((5,), 9, 0),
            scalars={"activation": "relu"},
            why="k = 0: what remains is the bias, activated, and the residual",
        ),
        Case(name="no_rows", axes=_axes((0,), 9, 7), why="an empty result"),
        Case(
            name="large",
            axes=_axes((9,), 40, 32),
            distribution="large",
            dtype="bfloat16",
            scalars={"activation": "gelu"},
            why="the residual cancels large results",
        ),
        Case(
            name="transposed",
            axes=_axes((66,), 70, 50),
            layout="transposed",
            scalars={"activation": "relu"},
            why="x, w and residual stored the other way round",
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
            name="projection_gpt2",
            axes=_axes((512,), 768, 768),
            source="GPT-2 small: attention output projection into the residual stream, 512 tokens",
            scale="laptop",
        ),
        Workload(
            name="mlp_out_gpt2",
            axes=_axes((256,), 768, 3072),
            source="GPT-2 small: second layer of the MLP into the residual stream, 256 tokens",
            scale="laptop",
        ),
        Workload(
            name="attention_out_llama3_8b",
            axes=_axes((4096,), 4096, 4096),
            source="Llama 3 8B: output projection into the residual stream, 4096 tokens",
        ),
        Workload(
            name="mlp_down_llama3_8b",
            axes=_axes((4096,), 4096, 14336),
            source="Llama 3 8B: MLP down projection into the residual stream, 4096 tokens",
        ),
    ),
    implementations=("triton_pipelined", "cuda_wgmma", "cuda_mma", "cpp_blocked", "torch_eager"),
)
