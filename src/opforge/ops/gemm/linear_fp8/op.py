"""A linear layer whose result is stored as E4M3 for the next product: y = activation(x @ w^T + bias) / scale."""

from opforge.core.operator import Case, Operator, Scalar, TensorSpec, Tolerance, Workload
from opforge.definitions.activation import ACTIVATIONS, activated, linear_errors, stored_between
from opforge.definitions.bounds.sums import few_ulps, finite

LARGEST = 448.0


def reference(x, w, bias, scale, *, activation):
    z = activated(x @ w.transpose(-1, -2) + bias, activation) / scale
    # as in quantize_fp8: what is not finite is no number of any size
    return z.clamp(-LARGEST, LARGEST).masked_fill(z.isinf(), float("nan"))


def errors(inputs, outputs, scalars, dtype):
    before = linear_errors(inputs["x"], inputs["w"], inputs["bias"], scalars["activation"], dtype)
    return {"y": (before + few_ulps(finite(outputs["y"] * inputs["scale"]).abs(), 2.0, 1.0)).times(1 / inputs["scale"])}


def rounded(inputs, outputs, scalars):
    # a library without this epilogue stores what comes before the activation and what comes after in 16 bits, bfloat16
    # at worst: its steps are a sixteenth of E4M3's
    z = inputs["x"] @ inputs["w"].transpose(-1, -2) + inputs["bias"]
    return {"y": (z, stored_between(z, scalars["activation"]) / (16 * inputs["scale"].abs()))}


def _axes(rows, n, k):
    return {"rows": rows, "n": n, "k": k}


operator = Operator(
    name="linear_fp8",
    about="linear layer with bias and activation, its result scaled to E4M3 before the store: activation(x @ w^T + "
    "bias) / scale",
    source="formats: OCP 8-bit floating point specification 1.0; one scale a tensor as in Micikevicius et al., FP8 "
    "formats for deep learning, 2022",
    inputs=(
        TensorSpec(name="x", shape="*rows k"),
        TensorSpec(
            name="w",
            shape="n k",
            about="as torch.nn.Linear keeps it; a k x n matrix is given as its transpose, without a copy",
        ),
        TensorSpec(name="bias", shape="n"),
        TensorSpec(
            name="scale",
            shape="1",
            dtype="float32",
            domain="nonzero",
            about="of the whole result: what is stored times the scale is the result; known before, as in delayed "
            "scaling",
        ),
    ),
    outputs=(
        TensorSpec(
            name="y",
            shape="*rows n",
            dtype="float8_e4m3fn",
            about="what is beyond 448 becomes 448, what is not finite NaN",
        ),
    ),
    dtypes=("float16", "bfloat16"),
    scalars=(Scalar(name="activation", default="none", choices=ACTIVATIONS, about="applied to x @ w^T + bias"),),
    reference=reference,
    differentiable=(),
    flops="2 * prod(rows) * n * k",
    bytes_saved="2 * prod(rows) * n * itemsize * (1 + (activation != 'none'))",
    unit="matrix",
    tolerance=Tolerance(
        errors=errors, rounded=rounded, about="one rounding to E4M3; an unfused library rounds twice to 16 bits before"
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
            axes=_axes((129,), 144, 72),
            scalars={"activation": "silu"},
            why="a second block of rows and columns with almost nothing in it",
        ),
        Case(name="one_row", axes=_axes((1,), 130, 77), why="decoding one token"),
        Case(
            name="no_terms",
            axes=_axes((5,), 9, 0),
            scalars={"activation": "relu"},
            why="k = 0: what remains is the bias, activated and scaled",
        ),
        Case(name="no_rows", axes=_axes((0,), 9, 7), why="an empty result"),
        Case(
            name="offset",
            axes=_axes((34,), 35, 60),
            distribution="offset",
            dtype="bfloat16",
            why="large results over a scale near 1: they are cut off at 448",
        ),
        Case(
            name="special",
            axes=_axes((9,), 20, 16),
            distribution="special",
            scalars={"activation": "relu"},
            why="an infinity becomes NaN, as in quantize_fp8, and stays in its row and column",
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
            axes=_axes((64,), 80, 32),
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
    ),
    implementations=("triton_pipelined", "cuda_wgmma", "cuda_mma", "cpp_blocked", "torch_eager", "torch_definition"),
)
