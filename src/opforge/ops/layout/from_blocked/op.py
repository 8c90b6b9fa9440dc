"""Tiles put back into a row-major matrix: the inverse of to_blocked."""

from opforge.core.operator import Operator, TensorSpec
from opforge.definitions.cases import TILED
from opforge.definitions.tolerances import MOVED
from opforge.definitions.workloads import TILES


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
    tolerance=MOVED,
    cases=TILED,
    workloads=TILES,
    implementations=("cuda_vectors", "triton_tiles", "cpp_rows", "torch_eager"),
)
