"""SwiGLU's elementwise part: y = silu(gate) * up, with silu(g) = g / (1 + exp(-g))."""

from opforge.core.definition.likeness import Like, Lowered
from opforge.core.operator import Case, Law, Operator, TensorSpec, Tolerance, Workload
from opforge.definitions.cases import ELEMENT_LAYOUTS, ELEMENTS
from opforge.definitions.torch_calls import unfit
from opforge.definitions.workloads import SWIGLUS


def reference(gate, up):
    return gate / (1 + (-gate).exp()) * up


def magnitude(inputs, outputs, scalars):
    gate, up, y = inputs["gate"], inputs["up"], outputs["y"]
    # an argument of exp carries an error of eps * |gate|, of which silu feels the share 1 - sigmoid
    size = y.abs() * (1 + gate.abs() * (1 - gate.sigmoid()))
    # below gate = -87.3 the sigmoid is smaller than the least normal number, and may be 0: then silu comes out as 0
    # instead of -1e-36
    return {"y": size + up.abs() * 2e-30}


def rounded(inputs, outputs, scalars):
    # PyTorch's `silu(gate) * up` stores silu in the output dtype before it multiplies
    return {"y": (inputs["gate"] * inputs["gate"].sigmoid(), inputs["up"])}


def no_larger_than_the_product(inputs, outputs, scalars):
    y, product = outputs["y"], inputs["gate"] * inputs["up"]
    # silu and the product may each be rounded to bfloat16, or to float16's subnormals, whose steps are 2^-24
    wrong = (y.abs() > product.abs() * (1 + 1 / 64) + (1 + inputs["up"].abs()) * 2.0**-25).sum().item()
    return None if wrong == 0 else f"{wrong} results are larger than |gate * up|"


def sign_of_the_product(inputs, outputs, scalars):
    wrong = (outputs["y"] * inputs["gate"] * inputs["up"] < 0).sum().item()
    return None if wrong == 0 else f"{wrong} results have not the sign of gate * up"


def swiglu(input, up):
    """silu(input) * up, in the two steps that PyTorch has."""
    import torch

    return torch.nn.functional.silu(input) * up


def lower(input, up):
    """silu(input) * up, the gate of a SwiGLU layer; PyTorch has it in two steps."""
    if reason := unfit(input, up):
        return reason
    return Lowered((input, up)) if input.shape == up.shape else "gate and up are of two shapes"


operator = Operator(
    name="silu_mul",
    about="silu(gate) * up: the gate of a SwiGLU feed-forward layer",
    source="Shazeer, GLU Variants Improve Transformer, 2020; the order of the arguments is Liger Kernel's",
    inputs=(TensorSpec(name="gate", shape="*shape"), TensorSpec(name="up", shape="*shape")),
    outputs=(TensorSpec(name="y", shape="*shape"),),
    reference=reference,
    # an exp counted as one
    flops="5 * prod(shape)",
    tolerance=Tolerance(
        magnitude=magnitude,
        rounded=rounded,
        about="exp to a few float32 ulp; silu, and then the product, may be rounded to the output dtype",
    ),
    laws=(
        Law(name="no_larger_than_the_product", about="a sigmoid is at most 1", holds=no_larger_than_the_product),
        Law(name="sign_of_the_product", about="a sigmoid is positive", holds=sign_of_the_product),
    ),
    cases=(
        *ELEMENTS,
        Case(name="prime", axes={"shape": (70001,)}, why="several blocks and a ragged end; swapped arguments show"),
        Case(
            name="constant_rows",
            axes={"shape": (17, 64)},
            distribution="constant_rows",
            why="the same gate along a row",
        ),
        Case(
            name="large",
            axes={"shape": (4099,)},
            distribution="large",
            why="exp overflows: the result is gate * up or 0",
        ),
        Case(name="tiny", axes={"shape": (513,)}, distribution="tiny", why="near 0 the result is gate * up / 2"),
        Case(
            name="skewed",
            axes={"shape": (1025,)},
            distribution="skewed",
            why="positive gates only, a few of them large",
        ),
        Case(
            name="special",
            axes={"shape": (263,)},
            distribution="special",
            why="NaN, infinities, signed zeros, a product that overflows",
        ),
        *ELEMENT_LAYOUTS,
    ),
    workloads=(
        *SWIGLUS,
        Workload(
            name="mlp_llama3_8b_decode",
            axes={"shape": (64, 14336)},
            source="Llama 3 8B: MLP, 64 sequences decoding: launch-bound",
        ),
    ),
    implementations=("cuda_vectors", "triton_blocks", "tilelang_blocks", "cpp_simd", "torch_eager", "library_liger"),
    gradient="silu_mul_backward",
    like=(Like(function=swiglu, lower=lower, autocast=False),),
    used=("language models",),
)
