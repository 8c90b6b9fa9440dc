"""The gradient of conv2d for its image: each pixel adds up what arrives at the outputs that have read it."""

from opforge.core.definition.likeness import Like, Lowered
from opforge.core.operator import Operator, TensorSpec, Tolerance
from opforge.definitions.conv.bounds import image_gradient_errors
from opforge.definitions.conv.cases import GRADIENT_CASES, GRADIENT_GRID, GRADIENT_WORKLOADS
from opforge.definitions.conv.taps import FITS, OUT_H, OUT_W, STEPS, image_gradient, out_sizes
from opforge.definitions.conv.torch_calls import channels_last, misfits, pair, precision_of, steps_of, transposed_sizes
from opforge.definitions.precision import COMPUTE_DTYPE, FACTORS_HAVE_FLOAT32, PRECISION
from opforge.definitions.torch_calls import unfit


def reference(x, w, dy, *, precision, **steps):
    return image_gradient(x, w, dy, steps)


def errors(inputs, outputs, scalars, dtype):
    return {"dx": image_gradient_errors(inputs["x"], inputs["w"], inputs["dy"], scalars, dtype)}


def lower_transposed(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    """As torch.nn.functional.conv_transpose2d, of a batch; a bias is added afterwards."""
    import torch

    if getattr(input, "ndim", 0) != 4 or getattr(weight, "ndim", 0) != 4 or isinstance(padding, str):
        return "a batch of images and a kernel are wanted"
    steps, more = steps_of(stride, padding, dilation, tuple(weight.shape[2:])), pair(output_padding, "output_padding")
    if isinstance(steps, str) or isinstance(more, str):
        return steps if isinstance(steps, str) else more
    if not isinstance(groups, int) or groups < 1 or input.shape[1] != weight.shape[0] or weight.shape[0] % groups:
        return "image, kernel and groups do not fit"
    size, kernel = tuple(input.shape[2:]), tuple(weight.shape[2:])
    made = transposed_sizes(size, kernel, steps, more)
    if min(made) < 1 or min(more) < 0 or min(size) < 1 or out_sizes(made, kernel, steps) != size:
        return "no convolution has an output of these sizes"
    # it says the sizes and nothing else: one element
    image = input.new_empty(1).expand(input.shape[0], weight.shape[1] * groups, *made)
    if channels_last(input) or channels_last(weight):
        return "its result would lie in channels_last"
    if reason := misfits(image, weight, None, groups, steps) or unfit(input, *(() if bias is None else (bias,))):
        return reason
    if bias is not None and tuple(bias.shape) != (image.shape[1],):
        return "the bias has no element for each channel"
    if bias is not None and bias.requires_grad and torch.is_grad_enabled():
        return "a gradient is wanted, and a bias has none here"
    finish = None if bias is None else lambda dx: dx.add_(bias[:, None, None])
    return Lowered((image, weight, input), {**steps, "precision": precision_of(input)}, finish)


operator = Operator(
    name="conv2d_input_grad",
    about="gradient of conv2d for its image",
    source="Chetlur et al., cuDNN, arXiv:1410.0759",
    inputs=(
        TensorSpec(name="x", shape="batch groups*channels height width", about="its sizes alone: no value is read"),
        TensorSpec(name="w", shape="groups*filters channels kernel_h kernel_w"),
        TensorSpec(name="dy", shape="batch groups*filters out_h out_w", about="what arrives for conv2d's output"),
    ),
    outputs=(TensorSpec(name="dx", shape="batch groups*channels height width"),),
    carried=("bias",),
    scalars=(*STEPS, PRECISION),
    derived={"out_h": OUT_H, "out_w": OUT_W},
    constraints=(*FITS, FACTORS_HAVE_FLOAT32),
    reference=reference,
    flops="2 * batch * groups * filters * out_h * out_w * channels * kernel_h * kernel_w",
    bytes_read="groups * filters * (channels * kernel_h * kernel_w + batch * out_h * out_w) * itemsize",
    unit="matrix",
    compute_dtype=COMPUTE_DTYPE,
    tolerance=Tolerance(errors=errors, about="products summed in float32"),
    cases=GRADIENT_CASES,
    workloads=GRADIENT_WORKLOADS,
    implementations=("triton_implicit", "cpp_patches", "torch_eager"),
    grid=GRADIENT_GRID,
    like=(Like(function="torch.nn.functional.conv_transpose2d", lower=lower_transposed),),
    used=("vision models",),
)
