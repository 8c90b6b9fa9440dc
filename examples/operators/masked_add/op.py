"""y = x + bias where a mask says so, in every format: whole numbers wrap and are judged exactly, float64 is float64."""

from opforge.core.operator import Case, Operator, TensorSpec, Workload
from opforge.definitions.cases import ROWS, row_layouts, row_ranks
from opforge.definitions.tolerances import ONE_ADDITION


def reference(x, bias, mask):
    return (x + bias).where(mask, x)


operator = Operator(
    name="masked_add",
    about="a bias added to rows where a mask says so, in whole numbers too",
    source="an example of dtypes: docs/kernels.md",
    inputs=(
        TensorSpec(name="x", shape="*lead cols"),
        TensorSpec(name="bias", shape="cols"),
        TensorSpec(name="mask", shape="*lead cols", dtype="bool"),
    ),
    outputs=(TensorSpec(name="y", shape="*lead cols"),),
    dtypes=("float64", "float32", "bfloat16", "int64", "int32", "int16", "int8", "uint8"),
    reference=reference,
    flops="prod(lead) * cols",
    tolerance=ONE_ADDITION,
    cases=(
        *ROWS,
        Case(
            name="ends",
            axes={"lead": (9,), "cols": 67},
            distribution="special",
            why="the ends of each format: sums of whole numbers wrap, NaN and infinities stay",
        ),
        Case(name="wide", axes={"lead": (5,), "cols": 300}, distribution="large", why="sums that wrap everywhere"),
        *row_ranks(),
        *row_layouts(),
    ),
    workloads=(
        Workload(
            name="tokens_gpt2",
            axes={"lead": (8, 1024), "cols": 768},
            source="GPT-2 small: token numbers shifted in a window, 8 sequences of 1024",
            scale="laptop",
        ),
    ),
    implementations=("triton_blocks", "cpp_rows", "torch_eager"),
)
