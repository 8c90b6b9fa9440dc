"""Group normalisation of images: each group of channels to mean 0 and variance 1, then a scale and a shift."""

from opforge.core.operator import Case, Constraint, Operator, Scalar, TensorSpec, Tolerance, Workload

LARGEST, BEYOND = 3.4e38, 1e150
"""The largest value of float32, and a magnitude far beyond it."""


def grouped(x, groups):
    """The elements of each group of each image, as a row: [batch, groups, channels // groups * height * width]."""
    batch, channels, height, width = x.shape
    return x.reshape(batch, groups, channels // groups * height * width)


def normalised(x, groups, eps):
    rows = grouped(x, groups)
    centred = rows - rows.mean(2, keepdim=True)
    return centred * (centred.square().mean(2, keepdim=True) + eps).rsqrt()


def reference(x, weight, bias, *, groups, eps):
    return normalised(x, groups, eps).reshape(x.shape) * weight[:, None, None] + bias[:, None, None]


def magnitude(inputs, outputs, scalars):
    """What is added up for an element, in units of its group's deviation; beyond float32 where that cannot hold the
    sum of squares: what a kernel makes of it is its own affair.
    """
    x, groups = inputs["x"], scalars["groups"]
    rows = grouped(x, groups)
    mean = rows.mean(2, keepdim=True)
    scale = ((rows - mean).square().mean(2, keepdim=True) + scalars["eps"]).rsqrt()
    fits = rows.square().sum(2, keepdim=True) <= LARGEST
    added = ((rows.abs() + rows.abs().mean(2, keepdim=True)) * scale).where(fits, BEYOND)
    return {"y": added.reshape(x.shape) * inputs["weight"].abs()[:, None, None] + inputs["bias"].abs()[:, None, None]}


def axes(batch, channels, height, width):
    return {"batch": batch, "channels": channels, "height": height, "width": width}


operator = Operator(
    name="group_norm_images",
    about="group normalisation of images in NCHW, with a weight and a bias per channel",
    source="Wu and He, Group Normalization, arXiv:1803.08494, 2018",
    inputs=(
        TensorSpec(name="x", shape="batch channels height width"),
        TensorSpec(name="weight", shape="channels"),
        TensorSpec(name="bias", shape="channels"),
    ),
    outputs=(TensorSpec(name="y", shape="batch channels height width"),),
    scalars=(
        Scalar(name="groups", default=32, about="how many groups the channels are divided into"),
        Scalar(name="eps", default=1e-5, about="added to the variance"),
    ),
    constraints=(Constraint(name="whole_groups", expression="channels % groups == 0", about="groups of one size"),),
    reference=reference,
    flops="8 * batch * channels * height * width",
    tolerance=Tolerance(
        factor=2.0,
        length="channels // groups * height * width",
        magnitude=magnitude,
        about="two sums over a group; the mean cancels",
    ),
    cases=(
        Case(name="odd", axes=axes(3, 15, 7, 5), scalars={"groups": 3}, why="no power of two anywhere"),
        Case(name="usual", axes=axes(2, 64, 4, 4), why="32 groups, as in the paper"),
        Case(name="one_group", axes=axes(2, 6, 5, 3), scalars={"groups": 1}, why="layer norm of an image"),
        Case(name="one_channel", axes=axes(2, 7, 9, 11), scalars={"groups": 7}, why="instance norm"),
        Case(name="one_past_a_block", axes=axes(1, 5, 41, 5), scalars={"groups": 1}, why="1025 elements in a group"),
        Case(name="no_image", axes=axes(0, 4, 3, 3), scalars={"groups": 2}, why="nothing to do"),
        Case(
            name="offset",
            axes=axes(2, 8, 7, 7),
            scalars={"groups": 4},
            distribution="offset",
            why="the mean is removed",
        ),
        Case(name="equal", axes=axes(2, 8, 5, 5), scalars={"groups": 2}, distribution="zeros", why="no deviation: eps"),
        Case(
            name="channels_last",
            axes=axes(2, 12, 5, 3),
            scalars={"groups": 3},
            layout="channels_last",
            why="NHWC memory, as convolutions give it",
        ),
        Case(
            name="channels_last_offset",
            axes=axes(1, 4, 16, 60),
            scalars={"groups": 2},
            distribution="offset",
            layout="channels_last",
            why="a path of its own in many libraries, where the mean is removed as well",
        ),
    ),
    workloads=(
        Workload(
            name="resnet50_conv2",
            axes=axes(1, 256, 56, 56),
            source="ResNet-50 with group norm, stage 2",
            scale="laptop",
        ),
        Workload(name="unet_sd15", axes=axes(2, 320, 64, 64), source="Stable Diffusion 1.5, U-Net, first level"),
    ),
    implementations=("triton_groups", "cpp_groups", "torch_eager"),
)
