"""Tiles put back into a row-major matrix: the inverse of to_blocked."""

from opforge.core.operator import Case, Operator, TensorSpec, Tolerance, Workload


def reference(x):
    return x.transpose(-3, -2)


operator = Operator(
    name="from_blocked",
    about="blocked to row-major: tiles of height x width put back into rows",
    source="the blocked layouts of seed 004, section 6.5: 4 x 4, 8 x 8 and larger tiles",
    inputs=(TensorSpec(name="x", shape="*lead down across height width"),),
    outputs=(TensorSpec(name="y", shape="*lead down height across width"),),
    reference=reference,
    flops="0",
    tolerance=Tolerance(factor=0.0, roundings=0.0, about="elements move and are not computed with: every result is exact"),
    cases=(
        Case(name="one_element", axes={"lead": (), "down": 1, "height": 1, "across": 1, "width": 1}, why="the smallest call"),
        Case(name="tiles_4", axes={"lead": (), "down": 5, "height": 4, "across": 7, "width": 4}, why="the seeds' 4 x 4: rows of 8 or 16 bytes"),
        Case(name="tiles_8", axes={"lead": (), "down": 3, "height": 8, "across": 5, "width": 8}, why="the seeds' 8 x 8"),
        Case(name="tiles_32", axes={"lead": (2,), "down": 2, "height": 32, "across": 3, "width": 32}, why="whole vectors in every row of a tile"),
        Case(name="odd_tiles", axes={"lead": (3,), "down": 2, "height": 5, "across": 3, "width": 7}, why="rows that no vector divides"),
        Case(name="flat_tiles", axes={"lead": (), "down": 9, "height": 1, "across": 3, "width": 16}, why="tiles of one row: nothing moves"),
        Case(name="tall_tiles", axes={"lead": (), "down": 3, "height": 64, "across": 5, "width": 1}, why="tiles of one column"),
        Case(name="one_tile_across", axes={"lead": (4,), "down": 3, "height": 16, "across": 1, "width": 16}, why="nothing moves"),
        Case(name="many", axes={"lead": (2, 2), "down": 8, "height": 16, "across": 16, "width": 16}, why="more than one block of threads"),
        Case(name="empty", axes={"lead": (0,), "down": 2, "height": 4, "across": 2, "width": 4}, why="no matrix at all"),
        Case(name="special", axes={"lead": (), "down": 3, "height": 8, "across": 4, "width": 8}, distribution="special", why="bits must arrive as they are"),
        Case(name="misaligned", axes={"lead": (), "down": 4, "height": 16, "across": 4, "width": 16}, layout="misaligned", why="vector accesses must not assume 16-byte addresses"),
    ),
    workloads=(
        Workload(
            name="weights_gpt2_laptop",
            axes={"lead": (), "down": 24, "height": 32, "across": 96, "width": 32},
            source="GPT-2 small: a weight of the MLP in tiles of 32 x 32",
            scale="laptop",
        ),
        Workload(
            name="activations_gpt2_laptop",
            axes={"lead": (), "down": 256, "height": 8, "across": 96, "width": 8},
            source="GPT-2 small: 2048 tokens in tiles of 8 x 8",
            scale="laptop",
        ),
        Workload(name="weights_llama3_8b", axes={"lead": (), "down": 128, "height": 32, "across": 448, "width": 32}, source="Llama 3 8B: a weight of the MLP in tiles of 32 x 32"),
        Workload(name="square_64", axes={"lead": (), "down": 128, "height": 64, "across": 128, "width": 64}, source="Llama 3 70B: a square weight in tiles of 64 x 64"),
    ),
    implementations=("cuda_vectors", "triton_tiles", "cpp_rows", "torch_eager"),
)
