"""Channels moved from the last place to the second: NHWC to NCHW, for any number of spatial axes."""

from opforge.core.operator import Case, Operator, TensorSpec, Tolerance, Workload


def reference(x):
    return x.movedim(-1, 1)


operator = Operator(
    name="nhwc_to_nchw",
    about="channels moved to the second axis: NHWC to NCHW",
    source="the layout conversion of seed 004, section 3.4",
    inputs=(TensorSpec(name="x", shape="batch *spatial channels"),),
    outputs=(TensorSpec(name="y", shape="batch channels *spatial"),),
    reference=reference,
    flops="0",
    tolerance=Tolerance(factor=0.0, roundings=0.0, about="elements move and are not computed with: every result is exact"),
    cases=(
        Case(name="one_element", axes={"batch": 1, "channels": 1, "spatial": (1, 1)}, why="the smallest call"),
        Case(name="whole_tiles", axes={"batch": 2, "channels": 64, "spatial": (8, 8)}, why="whole tiles of 64 channels and 64 positions"),
        Case(name="ragged", axes={"batch": 3, "channels": 65, "spatial": (13, 5)}, why="one past a tile on both sides"),
        Case(name="images", axes={"batch": 2, "channels": 3, "spatial": (17, 31)}, why="three channels: far fewer than a tile"),
        Case(name="odd_positions", axes={"batch": 2, "channels": 32, "spatial": (7, 7)}, why="49 positions: vectors on the side of the channels alone"),
        Case(name="odd_channels", axes={"batch": 2, "channels": 37, "spatial": (8, 4)}, why="vectors on the side of the positions alone"),
        Case(name="no_spatial_axis", axes={"batch": 7, "channels": 20, "spatial": ()}, why="nothing to move"),
        Case(name="volume", axes={"batch": 2, "channels": 12, "spatial": (3, 4, 5)}, why="three spatial axes"),
        Case(name="one_channel", axes={"batch": 3, "channels": 1, "spatial": (9, 9)}, why="both layouts are one"),
        Case(name="empty", axes={"batch": 0, "channels": 8, "spatial": (4, 4)}, why="no image at all"),
        Case(name="special", axes={"batch": 2, "channels": 9, "spatial": (5, 8)}, distribution="special", why="bits must arrive as they are"),
        Case(name="misaligned", axes={"batch": 2, "channels": 16, "spatial": (8, 8)}, layout="misaligned", why="vector accesses must not assume 16-byte addresses"),
    ),
    workloads=(
        Workload(name="conv2_resnet50_laptop", axes={"batch": 8, "channels": 256, "spatial": (56, 56)}, source="ResNet-50: conv2_x, batch 8", scale="laptop"),
        Workload(name="conv4_resnet50_laptop", axes={"batch": 8, "channels": 1024, "spatial": (14, 14)}, source="ResNet-50: conv4_x, batch 8", scale="laptop"),
        Workload(name="conv2_resnet50", axes={"batch": 256, "channels": 256, "spatial": (56, 56)}, source="ResNet-50: conv2_x, batch 256"),
        Workload(name="conv4_resnet50", axes={"batch": 256, "channels": 1024, "spatial": (14, 14)}, source="ResNet-50: conv4_x, batch 256"),
        Workload(name="images_imagenet", axes={"batch": 256, "channels": 3, "spatial": (224, 224)}, source="ImageNet: a batch of 256 images"),
    ),
    implementations=("cuda_tiles", "triton_tiles", "cpp_tiles", "torch_eager"),
)
