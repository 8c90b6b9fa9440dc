"""group_norm of [batch, channels, *spatial]: each group of channels of an image with mean 0 and variance 1, then a
weight and a bias for each channel.
"""

from opforge.core.definition.likeness import Like, Lowered
from opforge.core.operator import Law, Operator, TensorSpec, Tolerance
from opforge.definitions.group_norm import (
    CASES,
    GRID,
    OFFSET_CHANNELS_LAST,
    PARAMETERS,
    SHARED,
    SOURCE,
    WHOLE_GROUPS,
    WORKLOADS,
    along_channels,
    forward_errors,
    grouped,
    normalised,
)
from opforge.definitions.torch_calls import unfit


def reference(x, weight, bias, *, groups, eps):
    h, _ = normalised(x, groups, eps)
    return h.reshape(x.shape) * along_channels(weight, x) + along_channels(bias, x)


def errors(inputs, outputs, scalars, dtype):
    return {"y": forward_errors(inputs, scalars)}


def no_outlier_beyond_samuelson(inputs, outputs, scalars):
    # P. A. Samuelson, "How deviant can you be?", JASA 63, 1968: among n values none is further from the mean than
    # sqrt(n - 1) deviations
    x, y = inputs["x"], outputs["y"]
    if not x.numel():
        return None
    weight, bias = along_channels(inputs["weight"], x).abs(), along_channels(inputs["bias"], x)
    rows = grouped(x, scalars["groups"])
    most = weight * (rows.shape[-1] - 1) ** 0.5
    size = rows.abs() + rows.abs().mean(dim=-1, keepdim=True)
    scale = ((rows - rows.mean(dim=-1, keepdim=True)).square().mean(dim=-1, keepdim=True) + scalars["eps"]).rsqrt()
    # 2^-8 of y is half an ulp of bfloat16, the coarsest output; the last term is the rounding of the float32 mean
    rounding = 2.0**-8 * (y.abs() + bias.abs()) + 2.0**-16 * weight * (size * scale).reshape(x.shape)
    excess = ((y - bias).abs() - most - rounding).max().item()
    return None if excess <= 0 else f"|y - bias| exceeds |weight| * sqrt(elements of a group - 1) by {excess:.3g}"


def lower(input, num_groups, weight=None, bias=None, eps=1e-5):
    """As torch.nn.functional.group_norm: given weight and bias, of tensors whose positions are innermost in memory."""
    if weight is None or bias is None:
        return "the operator takes a weight and a bias"
    if reason := unfit(input, weight, bias):
        return reason
    if input.ndim < 2 or not input.is_contiguous():
        return "the positions of a channel are not innermost in memory: PyTorch keeps that order in its result"
    if not isinstance(num_groups, int) or num_groups < 1 or input.shape[1] % num_groups:
        return f"{num_groups} groups of one size are not to be had"
    if input.shape[1] // num_groups * input.shape[0] * input.shape[2:].numel() <= 1:
        return "PyTorch takes one value of a channel for training on a batch of one, and refuses it"
    if any(vector.shape != input.shape[1:2] for vector in (weight, bias)):
        return "weight and bias are no vectors over the channels"
    return Lowered((input, weight, bias), {"groups": num_groups, "eps": float(eps)})


operator = Operator(
    name="group_norm",
    about="group normalisation over channels and positions, with a weight and a bias for each channel",
    source=SOURCE,
    inputs=(
        TensorSpec(name="x", shape="batch channels *spatial"),
        TensorSpec(name="weight", shape="channels"),
        TensorSpec(name="bias", shape="channels"),
    ),
    outputs=(TensorSpec(name="y", shape="batch channels *spatial"),),
    scalars=PARAMETERS,
    constraints=(WHOLE_GROUPS,),
    reference=reference,
    flops="8 * batch * channels * prod(spatial)",
    tolerance=Tolerance(errors=errors, shared=SHARED, about="a group's sums are shared by at least 32 accumulators"),
    laws=(
        Law(
            name="no_outlier_beyond_samuelson",
            about="|y - bias| <= |weight| * sqrt(elements of a group - 1)",
            holds=no_outlier_beyond_samuelson,
        ),
    ),
    cases=(*CASES, OFFSET_CHANNELS_LAST),
    workloads=WORKLOADS,
    grid=GRID,
    gradient="group_norm_backward",
    implementations=("cuda_groups", "triton_groups", "cpp_groups", "torch_eager", "torch_definition"),
    like=(Like(function="torch.nn.functional.group_norm", lower=lower),),
    used=("diffusion models",),
)
