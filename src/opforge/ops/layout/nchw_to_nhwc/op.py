"""Channels moved from the second place to the last: NCHW to NHWC, for any number of spatial axes."""

from opforge.core.operator import Operator, TensorSpec
from opforge.definitions.cases import IMAGES
from opforge.definitions.tolerances import MOVED
from opforge.definitions.workloads import FEATURE_MAPS


def reference(x):
    return x.movedim(1, -1)


operator = Operator(
    name="nchw_to_nhwc",
    about="channels moved to the last axis: NCHW to NHWC",
    source="the layout conversion of seed 004, section 3.4",
    inputs=(TensorSpec(name="x", shape="batch channels *spatial"),),
    outputs=(TensorSpec(name="y", shape="batch *spatial channels"),),
    reference=reference,
    flops="0",
    tolerance=MOVED,
    cases=IMAGES,
    workloads=FEATURE_MAPS,
    implementations=("cuda_tiles", "triton_tiles", "cpp_tiles", "torch_eager"),
)
