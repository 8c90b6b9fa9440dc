"""A row-major matrix cut into tiles, each contiguous: x.view(down, height, across, width) with its middle axes
exchanged.
"""

from opforge.core.operator import Operator, TensorSpec
from opforge.definitions.cases import TILED
from opforge.definitions.tolerances import MOVED
from opforge.definitions.workloads import TILES


def reference(x):
    return x.transpose(-3, -2)


operator = Operator(
    name="to_blocked",
    about="row-major to blocked: each tile of height x width becomes contiguous",
    source="the blocked layouts of seed 004, section 6.5: 4 x 4, 8 x 8 and larger tiles",
    inputs=(TensorSpec(name="x", shape="*lead down height across width"),),
    outputs=(TensorSpec(name="y", shape="*lead down across height width"),),
    reference=reference,
    flops="0",
    tolerance=MOVED,
    cases=TILED,
    workloads=TILES,
    implementations=("cuda_vectors", "triton_tiles", "cpp_rows", "torch_eager"),
)
