"""The gradients of silu(gate) * up:  dgate = dy up s (1 + gate (1 - s)),  dup = dy gate s,  with s = sigmoid(gate)."""

from opforge.core.operator import Case, Law, Operator, TensorSpec, Tolerance
from opforge.definitions.cases import ELEMENT_LAYOUTS, ELEMENTS
from opforge.definitions.workloads import SWIGLUS


def reference(gate, up, dy):
    s = gate.sigmoid()
    return dy * up * s * (1 + gate * (1 - s)), dy * gate * s


def magnitude(inputs, outputs, scalars):
    gate, up, dy = (inputs[name] for name in ("gate", "up", "dy"))
    s = gate.sigmoid()
    # 1 and gate (1 - s) are added up, and cancel near gate = -1.28; an argument of exp carries an error of eps *
    # |gate|. below gate = -87.3 the sigmoid may be 0: 2^-126 * (1 + 88), in units of 6 eps, is 1.5e-30
    share = s * (1 + gate.abs() * (1 - s)) * (1 + gate.abs() * (1 - s)) + 2e-30
    # what s was rounded by stays whole in 1 - s, and is multiplied with gate: 8 ulp at gate = 10, as PyTorch has it
    share = share + s * s * gate.abs() / 4
    return {"dgate": (dy * up).abs() * share, "dup": dy.abs() * (s * gate.abs() * (1 + gate.abs() * (1 - s)) + 2e-30)}


def rounded(inputs, outputs, scalars):
    gate, up, dy = (inputs[name] for name in ("gate", "up", "dy"))
    s = gate.sigmoid()
    # PyTorch stores dy * up before it multiplies with the slope of silu, and silu before it multiplies with dy
    return {"dgate": (dy * up, s * (1 + gate * (1 - s))), "dup": (gate * s, dy)}


def no_larger_than_the_product(inputs, outputs, scalars):
    gate, dy, dup = inputs["gate"], inputs["dy"], outputs["dup"]
    wrong = (dup.abs() > (gate * dy).abs() * (1 + 1 / 64) + (1 + dy.abs()) * 2.0**-25).sum().item()
    return None if wrong == 0 else f"{wrong} results are larger than |gate * dy|"


operator = Operator(
    name="silu_mul_backward",
    about="gradients of silu(gate) * up with respect to gate and up",
    source="Shazeer, GLU Variants Improve Transformer, 2020, differentiated",
    inputs=(
        TensorSpec(name="gate", shape="*shape"),
        TensorSpec(name="up", shape="*shape"),
        TensorSpec(name="dy", shape="*shape"),
    ),
    outputs=(TensorSpec(name="dgate", shape="*shape"), TensorSpec(name="dup", shape="*shape")),
    reference=reference,
    # an exp counted as one
    flops="11 * prod(shape)",
    tolerance=Tolerance(
        magnitude=magnitude,
        rounded=rounded,
        about="exp to a few float32 ulp; a product may be rounded before the last multiplication",
    ),
    laws=(Law(name="no_larger_than_the_product", about="a sigmoid is at most 1", holds=no_larger_than_the_product),),
    cases=(
        *ELEMENTS,
        Case(name="prime", axes={"shape": (70001,)}, why="several blocks and a ragged end"),
        Case(name="large", axes={"shape": (4099,)}, distribution="large", why="exp overflows: the sigmoid is 1 or 0"),
        Case(name="tiny", axes={"shape": (513,)}, distribution="tiny", why="near 0 the sigmoid is 1/2"),
        Case(
            name="skewed",
            axes={"shape": (1025,)},
            distribution="skewed",
            why="positive gates only, a few of them large",
        ),
        *ELEMENT_LAYOUTS,
    ),
    workloads=SWIGLUS,
    implementations=("cuda_vectors", "triton_blocks", "cpp_simd", "torch_eager", "torch_definition"),
)
