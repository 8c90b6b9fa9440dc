"""One number added to every element: y = x + value."""

from opforge.core.definition.likeness import Like, Lowered
from opforge.core.operator import Case, Operator, Scalar, TensorSpec, Tolerance, Workload
from opforge.definitions.cases import ELEMENT_LAYOUTS, ELEMENTS
from opforge.definitions.torch_calls import unfit


def reference(x, *, value):
    return x + value


def magnitude(inputs, outputs, scalars):
    # the number itself is rounded to float32 before it is added
    return {"y": outputs["y"].abs() + abs(scalars["value"])}


def rounded(inputs, outputs, scalars):
    # PyTorch rounds the number to a 16-bit dtype before it adds it, on some devices: a difference where that is not
    # exact
    y = outputs["y"]
    value = y.new_full(y.shape, scalars["value"])
    return {"y": (value, ((value.half() != value) | (value.bfloat16() != value)).to(value.dtype))}


def lower(input, other, *, alpha=1, out=None):
    """As torch.add: a tensor and a number."""
    if out is not None or alpha != 1:
        return "the operators make their result, and multiply nothing by alpha"
    if type(other) not in (int, float):
        return "the other operand is no real number"
    return unfit(input) or Lowered((input,), {"value": float(other)})


operator = Operator(
    name="add_scalar",
    about="one number added to every element of a tensor",
    source="the AddScalar operator that the seeds' examples begin with",
    inputs=(TensorSpec(name="x", shape="*shape"),),
    outputs=(TensorSpec(name="y", shape="*shape"),),
    scalars=(Scalar(name="value", default=1.0, about="what is added; rounded to float32"),),
    reference=reference,
    flops="prod(shape)",
    tolerance=Tolerance(
        factor=1.0, magnitude=magnitude, rounded=rounded, about="the number rounded, one float32 addition, one rounding"
    ),
    cases=(
        *ELEMENTS,
        Case(name="prime", axes={"shape": (70001,)}, why="several blocks and a ragged end"),
        Case(
            name="negative",
            axes={"shape": (31, 67)},
            scalars={"value": -0.1},
            why="a number that no binary format holds exactly",
        ),
        Case(
            name="cancelling",
            axes={"shape": (31, 67)},
            distribution="offset",
            scalars={"value": -100.0},
            why="values near 100 less 100: the addition must be made in float32",
        ),
        Case(
            name="zero", axes={"shape": (999,)}, distribution="tiny", scalars={"value": 0.0}, why="nothing may change"
        ),
        Case(name="large", axes={"shape": (513,)}, distribution="large", why="the number disappears in the rounding"),
        Case(name="special", axes={"shape": (263,)}, distribution="special", why="NaN and infinities stay"),
        *ELEMENT_LAYOUTS,
    ),
    workloads=(
        Workload(
            name="epsilon_gpt2",
            axes={"shape": (4, 1024, 768)},
            scalars={"value": 1e-5},
            source="GPT-2 small: the residual stream, 4 sequences of 1024",
            scale="laptop",
        ),
        Workload(
            name="shift_resnet50_laptop",
            axes={"shape": (8, 256, 56, 56)},
            source="ResNet-50: the maps of conv2_x, batch 8",
            scale="laptop",
        ),
        Workload(
            name="shift_llama3_8b", axes={"shape": (8192, 4096)}, source="Llama 3 8B: residual stream, 8192 tokens"
        ),
        Workload(
            name="shift_resnet50",
            axes={"shape": (256, 256, 56, 56)},
            source="ResNet-50: the maps of conv2_x, batch 256",
        ),
    ),
    implementations=("cuda_vectors", "triton_blocks", "tilelang_blocks", "cpp_simd", "torch_eager"),
    like=(Like(function="torch.add", lower=lower, autocast=False),),
)
