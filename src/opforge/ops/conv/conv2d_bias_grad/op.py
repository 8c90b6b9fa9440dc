"""The gradient of conv2d for its bias: the sum of what arrives for each filter."""

from opforge.core.definition.rounding_errors import Errors
from opforge.core.operator import Case, Operator, TensorSpec, Tolerance, Workload
from opforge.definitions.bounds.sums import sum_errors


def reference(bias, dy):
    return dy.sum(dim=(0, 2, 3))


def errors(inputs, outputs, scalars, dtype):
    rows = inputs["dy"].transpose(0, 1).flatten(1)
    if not rows.shape[1]:
        return {"dbias": Errors(outputs["dbias"].abs(), outputs["dbias"].abs())}
    found = sum_errors(rows)
    return {"dbias": Errors(*(part.squeeze(-1) for part in (found.largest, found.typical, found.reached)))}


def _axes(batch, filters, out_h, out_w):
    return {"batch": batch, "filters": filters, "out_h": out_h, "out_w": out_w}


operator = Operator(
    name="conv2d_bias_grad",
    about="gradient of conv2d for its bias: the sum over images, rows and columns",
    inputs=(
        TensorSpec(name="bias", shape="filters", about="its size alone: no value is read"),
        TensorSpec(name="dy", shape="batch filters out_h out_w", about="what arrives for conv2d's output"),
    ),
    outputs=(TensorSpec(name="dbias", shape="filters"),),
    reference=reference,
    flops="batch * filters * out_h * out_w",
    bytes_read="batch * filters * out_h * out_w * itemsize",
    tolerance=Tolerance(errors=errors, about="sums in float32"),
    cases=(
        Case(name="odd", axes=_axes(3, 5, 7, 9), why="no block divides any axis"),
        Case(name="one_pixel", axes=_axes(4, 3, 1, 1), why="one term for each image"),
        Case(name="one_filter", axes=_axes(2, 1, 6, 5), why="a single sum"),
        Case(name="long_rows", axes=_axes(1, 2, 3, 1030), why="a row longer than a block"),
        Case(name="no_batch", axes=_axes(0, 4, 3, 3), why="a sum of nothing is 0"),
        Case(name="integers", axes=_axes(2, 6, 5, 7), distribution="integers", why="every sum is exact"),
        Case(name="special", axes=_axes(2, 4, 4, 5), distribution="special", why="NaN and infinities stay"),
        Case(name="channels_last", axes=_axes(2, 17, 5, 6), layout="channels_last", why="filters lie side by side"),
        Case(name="sliced", axes=_axes(2, 3, 4, 9), layout="sliced", why="rows inside of wider ones"),
    ),
    workloads=(
        Workload(
            name="resnet_stage_1",
            axes=_axes(1, 64, 56, 56),
            source="ResNet-50 (He et al., arXiv:1512.03385): stage 1, batch 1",
            scale="laptop",
        ),
        Workload(
            name="convnext_stage_1",
            axes=_axes(32, 128, 56, 56),
            source="ConvNeXt-B (Liu et al., arXiv:2201.03545): stage 1, batch 32",
            layout="channels_last",
        ),
    ),
    implementations=("triton_sums", "cpp_sums", "torch_eager"),
    used=("vision models",),
)
