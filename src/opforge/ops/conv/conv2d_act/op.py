"""A convolution with what follows it: y = activation(convolution + bias + residual), stored once."""

from opforge.core.operator import Case, Operator, Scalar, TensorSpec, Tolerance
from opforge.definitions.activation import ACTIVATIONS, activated, slope, stored_below_normal
from opforge.definitions.conv.bounds import activated_errors, conv_errors
from opforge.definitions.conv.cases import CASES, GRID, WORKLOADS, activated_too, around, axes, stepping
from opforge.definitions.conv.taps import FITS, OUT_H, OUT_W, STEPS, convolved
from opforge.definitions.precision import COMPUTE_DTYPE, FACTORS_HAVE_FLOAT32, PRECISION


def before(x, w, bias, residual, steps):
    z = convolved(x, w, steps)
    z = z if bias is None else z + bias[:, None, None]
    return z if residual is None else z + residual


def reference(x, w, bias, residual, *, activation, precision, **steps):
    return activated(before(x, w, bias, residual, steps), activation)


def errors(inputs, outputs, scalars, dtype):
    x, w, bias, residual = (inputs[name] for name in ("x", "w", "bias", "residual"))
    sums = conv_errors(x, w, bias, scalars, dtype)
    found = activated_errors(before(x, w, bias, residual, scalars), sums, residual, scalars["activation"])
    return {"y": found + stored_below_normal(scalars["activation"], dtype)}


def rounded(inputs, outputs, scalars):
    # a library without this epilogue stores the sums with their bias, then those with the residual
    x, w, bias, residual = (inputs[name] for name in ("x", "w", "bias", "residual"))
    z = before(x, w, bias, residual, scalars)
    size = z.abs() if residual is None else z.abs().maximum((z - residual).abs())
    return {"y": (size, 2 * slope(z, scalars["activation"]))}


KEPT = (
    "pointwise", "stem_7x7", "depthwise_7x7", "groups", "all_differ", "only_padding", "one_pixel", "many_channels",
    "no_batch", "special", "channels_last", "channels_last_stride", "sliced",
)  # fmt: skip

operator = Operator(
    name="conv2d_act",
    about="convolution with bias, residual and activation in one pass: activation(convolution + bias + residual)",
    source="He et al., Deep residual learning, arXiv:1512.03385; the order is that of cuDNN's fused convolution",
    inputs=(
        TensorSpec(name="x", shape="batch groups*channels height width", about="NCHW in its axes, in memory also NHWC"),
        TensorSpec(name="w", shape="groups*filters channels kernel_h kernel_w", about="as torch.nn.Conv2d keeps it"),
        TensorSpec(name="bias", shape="groups*filters", optional=True, about="added to each filter's outputs"),
        TensorSpec(
            name="residual",
            shape="batch groups*filters out_h out_w",
            optional=True,
            about="added before the activation, as in a residual block",
        ),
    ),
    outputs=(TensorSpec(name="y", shape="batch groups*filters out_h out_w"),),
    scalars=(
        Scalar(
            name="activation",
            default="none",
            choices=ACTIVATIONS,
            about="applied to the convolution with its bias and residual",
        ),
        *STEPS,
        PRECISION,
    ),
    derived={"out_h": OUT_H, "out_w": OUT_W},
    constraints=(*FITS, FACTORS_HAVE_FLOAT32),
    reference=reference,
    flops="2 * batch * groups * filters * out_h * out_w * channels * kernel_h * kernel_w",
    bytes_saved="2 * batch * groups * filters * out_h * out_w * itemsize * ((activation != 'none') + has_residual)",
    unit="matrix",
    compute_dtype=COMPUTE_DTYPE,
    tolerance=Tolerance(
        errors=errors,
        rounded=rounded,
        about="products summed in float32; a library without this epilogue rounds before the sum and the activation",
    ),
    cases=(
        *(
            Case(
                name=f"odd_{activation}",
                axes=axes(2, 5, 7, (6, 9), (3, 3)),
                scalars={"activation": activation, "has_residual": residual, "has_bias": bias, **around(1)},
                why=f"{activation}, {'with' if bias else 'without'} bias, {'with' if residual else 'without'} residual",
            )
            for activation, bias, residual in zip(
                ACTIVATIONS, (True, False, True, True), (True, True, False, True), strict=True
            )
        ),
        Case(
            name="residual_channels_last",
            axes=axes(2, 16, 24, (7, 5), (3, 3)),
            layout="channels_last",
            scalars={"activation": "relu", **around(1)},
            why="NHWC: the residual too",
        ),
        Case(
            name="residual_stride",
            axes=axes(1, 6, 8, (9, 11), (3, 3)),
            scalars={"activation": "silu", **stepping(stride=(2, 2), pad=(1, 1, 1, 1))},
            why="the residual has the output's rows and columns, not the image's",
        ),
        *(activated_too(case, residual=case.name == "many_channels") for case in CASES if case.name in KEPT),
    ),
    workloads=tuple(
        activated_too(workload, residual="3x3" in workload.name)
        for workload in WORKLOADS
        if "whisper" not in workload.name
    ),
    implementations=("triton_implicit", "cpp_planes", "torch_definition", "torch_eager"),
    grid=tuple(activated_too(workload) for workload in GRID),
    used=("vision models",),
)
