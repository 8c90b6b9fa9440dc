"""y = x * weight + bias, either of them left away: an optional input is None where a call does not give it."""

from opforge.core.operator import Case, Operator, TensorSpec, Tolerance, Workload
from opforge.definitions.cases import ROWS, row_layouts, row_ranks


def reference(x, weight, bias):
    y = x if weight is None else x * weight
    return y if bias is None else y + bias


def magnitude(inputs, outputs, scalars):
    """What is added up; an input that is not given is None here too."""
    sizes = {name: None if tensor is None else tensor.abs() for name, tensor in inputs.items()}
    return {"y": reference(**sizes)}


operator = Operator(
    name="optional_affine",
    about="rows times a weight plus a bias, either of them left away",
    source="an example of optional inputs: docs/kernels.md",
    inputs=(
        TensorSpec(name="x", shape="*lead cols"),
        TensorSpec(name="weight", shape="cols", optional=True),
        TensorSpec(name="bias", shape="cols", optional=True),
    ),
    outputs=(TensorSpec(name="y", shape="*lead cols"),),
    reference=reference,
    flops="(has_weight + has_bias) * prod(lead) * cols",
    tolerance=Tolerance(magnitude=magnitude, roundings=2, about="a product and a sum"),
    cases=(
        *ROWS,
        *row_ranks(),
        *row_layouts(),
        Case(name="no_weight", axes={"lead": (9,), "cols": 67}, scalars={"has_weight": False}, why="a bias alone"),
        Case(name="no_bias", axes={"lead": (9,), "cols": 67}, scalars={"has_bias": False}, why="a weight alone"),
        Case(
            name="neither",
            axes={"lead": (5,), "cols": 300},
            scalars={"has_weight": False, "has_bias": False},
            why="a copy",
        ),
    ),
    workloads=(
        Workload(name="tokens_gpt2", axes={"lead": (8, 1024), "cols": 768}, source="GPT-2 small", scale="laptop"),
        Workload(
            name="tokens_llama3",
            axes={"lead": (8192,), "cols": 4096},
            scalars={"has_bias": False},
            source="Llama 3 8B, whose norms have no bias",
        ),
    ),
    implementations=("triton_blocks", "cpp_rows", "torch_eager"),
)
