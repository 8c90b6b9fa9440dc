"""Batch normalisation at inference, folded into two numbers a channel: y = x * scale[c] + shift[c]."""

from opforge.core.operator import Case, Operator, TensorSpec, Tolerance, Workload


def reference(x, scale, shift):
    around = (1, -1, *(1,) * (x.ndim - 2))
    return x * scale.reshape(around) + shift.reshape(around)


def magnitude(inputs, outputs, scalars):
    around = (1, -1, *(1,) * (inputs["x"].ndim - 2))
    # the product and the shift are added up, and may cancel
    return {"y": (inputs["x"] * inputs["scale"].reshape(around)).abs() + inputs["shift"].reshape(around).abs()}


operator = Operator(
    name="scale_shift",
    about="x * scale + shift with one scale and one shift a channel: batch norm at inference",
    source="Ioffe and Szegedy, Batch Normalization, 2015, section 3.1: at inference it is one linear function a "
    "channel",
    inputs=(
        TensorSpec(
            name="x",
            shape="batch channels *spatial",
            about="channels last: no spatial axes, and every position is a batch",
        ),
        TensorSpec(name="scale", shape="channels", about="weight / sqrt(var + eps)"),
        TensorSpec(name="shift", shape="channels", about="bias - mean * scale"),
    ),
    outputs=(TensorSpec(name="y", shape="batch channels *spatial"),),
    reference=reference,
    flops="2 * batch * channels * prod(spatial)",
    tolerance=Tolerance(factor=1.0, magnitude=magnitude, about="a product and a sum in float32, one rounding"),
    cases=(
        Case(name="one_element", axes={"batch": 1, "channels": 1, "spatial": ()}, why="the smallest call"),
        Case(name="channels_first", axes={"batch": 3, "channels": 5, "spatial": (8, 8)}, why="maps of whole vectors"),
        Case(
            name="channels_first_odd",
            axes={"batch": 2, "channels": 37, "spatial": (7, 7)},
            why="49 positions: a vector spans channels",
        ),
        Case(
            name="channels_last",
            axes={"batch": 98, "channels": 64, "spatial": ()},
            why="NHWC: every position is a batch",
        ),
        Case(
            name="channels_last_odd",
            axes={"batch": 98, "channels": 3, "spatial": ()},
            why="three channels: a vector spans positions",
        ),
        Case(
            name="one_spatial_axis",
            axes={"batch": 2, "channels": 12, "spatial": (131,)},
            why="sound: one spatial axis, of prime length",
        ),
        Case(name="volume", axes={"batch": 2, "channels": 3, "spatial": (3, 4, 5)}, why="three spatial axes"),
        Case(
            name="several_blocks",
            axes={"batch": 5, "channels": 64, "spatial": (12, 12)},
            why="more than one block of any kind",
        ),
        Case(name="empty", axes={"batch": 0, "channels": 8, "spatial": (4, 4)}, why="no element at all"),
        Case(
            name="exact",
            axes={"batch": 3, "channels": 16, "spatial": (4, 4)},
            distribution="integers",
            why="small integers are exact in every dtype",
        ),
        Case(
            name="offset",
            axes={"batch": 3, "channels": 16, "spatial": (5, 5)},
            distribution="offset",
            why="a product near 10000 and a shift near 100: made in float32",
        ),
        Case(
            name="tiny",
            axes={"batch": 3, "channels": 16, "spatial": (5, 5)},
            distribution="tiny",
            why="products below the least normal number",
        ),
        Case(
            name="special",
            axes={"batch": 4, "channels": 11, "spatial": (6, 6)},
            distribution="special",
            why="NaN and infinities of a channel reach all its positions",
        ),
        Case(
            name="misaligned",
            axes={"batch": 3, "channels": 16, "spatial": (8, 8)},
            layout="misaligned",
            why="vector accesses must not assume 16-byte addresses",
        ),
        Case(
            name="strides_channels_last",
            axes={"batch": 2, "channels": 16, "spatial": (6, 5)},
            layout="channels_last",
            why="strides that are not row-major",
        ),
    ),
    workloads=(
        Workload(
            name="conv2_resnet50_laptop",
            axes={"batch": 8, "channels": 256, "spatial": (56, 56)},
            source="ResNet-50: conv2_x, batch 8",
            scale="laptop",
        ),
        Workload(
            name="conv2_resnet50_nhwc_laptop",
            axes={"batch": 8 * 56 * 56, "channels": 256, "spatial": ()},
            source="the same, channels last",
            scale="laptop",
        ),
        Workload(
            name="conv2_resnet50",
            axes={"batch": 256, "channels": 256, "spatial": (56, 56)},
            source="ResNet-50: conv2_x, batch 256",
        ),
        Workload(
            name="conv2_resnet50_nhwc",
            axes={"batch": 256 * 56 * 56, "channels": 256, "spatial": ()},
            source="the same, channels last",
        ),
        Workload(
            name="conv5_resnet50",
            axes={"batch": 256, "channels": 2048, "spatial": (7, 7)},
            source="ResNet-50: conv5_x, batch 256: 49 positions",
        ),
    ),
    implementations=("cuda_flat", "triton_tiles", "cpp_rows", "torch_eager"),
)
