"""The gradient of conv2d for its image: each pixel adds up what arrives at the outputs that have read it."""

from opforge.core.operator import Operator, TensorSpec, Tolerance
from opforge.definitions.conv.bounds import image_gradient_errors
from opforge.definitions.conv.cases import GRADIENT_CASES, GRADIENT_GRID, GRADIENT_WORKLOADS
from opforge.definitions.conv.taps import FITS, OUT_H, OUT_W, STEPS, image_gradient
from opforge.definitions.precision import COMPUTE_DTYPE, FACTORS_HAVE_FLOAT32, PRECISION


def reference(x, w, dy, *, precision, **steps):
    return image_gradient(x, w, dy, steps)


def errors(inputs, outputs, scalars, dtype):
    return {"dx": image_gradient_errors(inputs["x"], inputs["w"], inputs["dy"], scalars, dtype)}


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
    used=("vision models",),
)
