"""The last two axes exchanged: y[l, c, r] = x[l, r, c]."""

from opforge.core.operator import Case, Operator, TensorSpec, Workload
from opforge.definitions.tolerances import MOVED


def reference(x):
    return x.transpose(-1, -2)


operator = Operator(
    name="transpose",
    about="matrices transposed: the last two axes exchanged",
    source="the layout conversion of seed 004, row-major to column-major",
    inputs=(TensorSpec(name="x", shape="*lead rows cols"),),
    outputs=(TensorSpec(name="y", shape="*lead cols rows"),),
    reference=reference,
    flops="0",
    tolerance=MOVED,
    cases=(
        Case(name="one_element", axes={"lead": (), "rows": 1, "cols": 1}, why="the smallest call"),
        Case(name="square", axes={"lead": (), "rows": 128, "cols": 128}, why="whole tiles"),
        Case(
            name="ragged",
            axes={"lead": (3,), "rows": 65, "cols": 129},
            why="one past a tile of 64 and of 128 on both sides",
        ),
        Case(name="prime", axes={"lead": (2,), "rows": 31, "cols": 1021}, why="sizes that no vector divides"),
        Case(
            name="one_side_aligned",
            axes={"lead": (2,), "rows": 72, "cols": 67},
            why="rows in vectors on one side alone",
        ),
        Case(
            name="other_side_aligned",
            axes={"lead": (2,), "rows": 67, "cols": 72},
            why="rows in vectors on the other side alone",
        ),
        Case(name="one_row", axes={"lead": (5,), "rows": 1, "cols": 300}, why="a transposition that moves nothing"),
        Case(name="one_column", axes={"lead": (5,), "rows": 300, "cols": 1}, why="the other one"),
        Case(name="many_small", axes={"lead": (70, 3), "rows": 5, "cols": 7}, why="matrices far smaller than a tile"),
        Case(name="empty", axes={"lead": (0,), "rows": 4, "cols": 6}, why="no matrix at all"),
        Case(
            name="special",
            axes={"lead": (2,), "rows": 33, "cols": 40},
            distribution="special",
            why="bits must arrive as they are",
        ),
        Case(
            name="misaligned",
            axes={"lead": (2,), "rows": 64, "cols": 64},
            layout="misaligned",
            why="vector accesses must not assume 16-byte addresses",
        ),
        Case(
            name="transposed",
            axes={"lead": (), "rows": 66, "cols": 34},
            layout="transposed",
            why="strides that are not row-major: refused or right",
        ),
    ),
    workloads=(
        Workload(
            name="scores_bert_base",
            axes={"lead": (12, 8), "rows": 128, "cols": 128},
            source="BERT base: keys of 8 sequences, all heads",
            scale="laptop",
        ),
        Workload(
            name="weights_gpt2",
            axes={"lead": (), "rows": 768, "cols": 3072},
            source="GPT-2 small: a weight of the MLP",
            scale="laptop",
        ),
        Workload(
            name="square_8192", axes={"lead": (), "rows": 8192, "cols": 8192}, source="Llama 3 70B: a square weight"
        ),
        Workload(
            name="weights_llama3_8b",
            axes={"lead": (), "rows": 4096, "cols": 14336},
            source="Llama 3 8B: a weight of the MLP",
        ),
        Workload(
            name="heads_llama3_8b",
            axes={"lead": (32, 8), "rows": 2048, "cols": 128},
            source="Llama 3 8B: keys of 8 sequences of 2048, 32 heads",
        ),
    ),
    implementations=("cuda_tiles", "triton_tiles", "cpp_tiles", "torch_eager"),
)
