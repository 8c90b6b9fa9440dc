"""Convolution of images: y[n, f, p, q] = sum of x[n, c, …] * w[f, c, r, s] over channels and taps, plus a bias."""

from opforge.core.definition.likeness import Like, Lowered
from opforge.core.operator import Operator, TensorSpec, Tolerance
from opforge.definitions.conv.bounds import conv_errors
from opforge.definitions.conv.cases import CASES, GRID, WORKLOADS
from opforge.definitions.conv.taps import FITS, OUT_H, OUT_W, STEPS, convolved
from opforge.definitions.conv.torch_calls import along_columns, misfits, precision_of, steps_of
from opforge.definitions.precision import COMPUTE_DTYPE, FACTORS_HAVE_FLOAT32, PRECISION


def reference(x, w, bias, *, precision, **steps):
    y = convolved(x, w, steps)
    return y if bias is None else y + bias[:, None, None]


def errors(inputs, outputs, scalars, dtype):
    return {"y": conv_errors(inputs["x"], inputs["w"], inputs["bias"], scalars, dtype)}


def rounded(inputs, outputs, scalars):
    # a library that adds the bias in a pass of its own stores the sums before it
    y, bias = outputs["y"], inputs["bias"]
    if bias is None:
        return {"y": (y, y.new_zeros(()))}
    return {"y": (y - bias[:, None, None], y.new_ones(()))}


def lower(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """As torch.nn.functional.conv2d, of images in a batch or of one; padding may be "same" or "valid"."""
    if getattr(weight, "ndim", 0) != 4:
        return "a kernel has filters, channels, rows and columns"
    steps = steps_of(stride, padding, dilation, tuple(weight.shape[2:]))
    if isinstance(steps, str):
        return steps
    alone = getattr(input, "ndim", 0) == 3
    images = input.unsqueeze(0) if alone else input
    if reason := misfits(images, weight, bias, groups, steps):
        return reason
    given = {} if bias is None else {"bias": bias}
    finish = (lambda y: y.squeeze(0)) if alone else None
    return Lowered((images, weight), {**steps, **given, "precision": precision_of(images)}, finish)


def lower_1d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """As torch.nn.functional.conv1d: a convolution of images of one row."""
    if getattr(input, "ndim", 0) not in (2, 3) or getattr(weight, "ndim", 0) != 3:
        return "a batch has channels and places, a kernel filters, channels and taps"
    ways = [along_columns(value, usual) for value, usual in ((stride, 1), (padding, 0), (dilation, 1))]
    if any(isinstance(way, str) and way not in ("same", "valid") for way in ways):
        return "an argument is no number"
    found = lower(input.unsqueeze(-2), weight.unsqueeze(-2), bias, *ways, groups)
    if isinstance(found, str):
        return found
    last = found.finish
    return found._replace(finish=lambda y: (y if last is None else last(y)).squeeze(-2))


operator = Operator(
    name="conv2d",
    about="convolution of images with stride, padding, dilation and groups, and a bias",
    source="LeCun et al., Gradient-based learning applied to document recognition, Proc. IEEE 86(11), 1998; "
    "Chetlur et al., cuDNN, arXiv:1410.0759",
    inputs=(
        TensorSpec(
            name="x",
            shape="batch groups*channels height width",
            about="NCHW in its axes; in memory NCHW or NHWC (torch.channels_last)",
        ),
        TensorSpec(
            name="w",
            shape="groups*filters channels kernel_h kernel_w",
            about="as torch.nn.Conv2d keeps it; the groups follow from its channels",
        ),
        TensorSpec(name="bias", shape="groups*filters", optional=True, about="added to each filter's outputs"),
    ),
    outputs=(TensorSpec(name="y", shape="batch groups*filters out_h out_w"),),
    scalars=(*STEPS, PRECISION),
    derived={"out_h": OUT_H, "out_w": OUT_W},
    constraints=(*FITS, FACTORS_HAVE_FLOAT32),
    reference=reference,
    flops="2 * batch * groups * filters * out_h * out_w * channels * kernel_h * kernel_w",
    unit="matrix",
    compute_dtype=COMPUTE_DTYPE,
    tolerance=Tolerance(
        errors=errors,
        rounded=rounded,
        about="channels * kernel_h * kernel_w products summed in float32; a library may round before it adds the bias",
    ),
    cases=CASES,
    workloads=WORKLOADS,
    gradient="conv2d_input_grad",
    further_gradients=("conv2d_weight_grad", "conv2d_bias_grad"),
    implementations=("triton_implicit", "cpp_planes", "torch_definition", "torch_eager"),
    like=(
        Like(function="torch.nn.functional.conv2d", lower=lower),
        Like(function="torch.nn.functional.conv1d", lower=lower_1d),
    ),
    grid=GRID,
    used=("vision models",),
)
