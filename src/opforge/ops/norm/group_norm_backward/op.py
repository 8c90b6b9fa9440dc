"""Gradients of group_norm: dx, dweight and dbias from x, weight and dy; mean and variance are taken from x again."""

from opforge.core.operator import Law, Operator, TensorSpec, Tolerance
from opforge.definitions.group_norm import (
    CASES,
    GRID,
    PARAMETERS,
    SHARED,
    SOURCE,
    WHOLE_GROUPS,
    WORKLOADS,
    backward_errors,
    gradients,
    grouped,
    lost_of_groups,
)


def reference(x, weight, dy, *, groups, eps):
    return gradients(x, weight, dy, groups, eps)


def errors(inputs, outputs, scalars, dtype):
    return backward_errors(inputs, scalars)


def shift_moves_nothing(inputs, outputs, scalars):
    if not inputs["x"].numel():
        return None
    # y does not change when a constant is added to a group, so the gradients of its elements cancel
    dx, size = outputs["dx"], backward_errors(inputs, scalars)["dx"].reached
    # 2^-8: each element is rounded to the output dtype, bfloat16 at the coarsest; 2^-25: to float16's subnormals
    slack = 2.0**-8 * dx.abs() + 2.0**-14 * size + 2.0**-25
    slack = grouped(slack, scalars["groups"]).sum(dim=-1) + lost_of_groups(inputs, scalars)
    excess = (grouped(dx, scalars["groups"]).sum(dim=-1).abs() - slack).max().item()
    return None if excess <= 0 else f"the gradients of a group sum up to {excess:.3g} more than rounding explains"


operator = Operator(
    name="group_norm_backward",
    about="gradients of group normalisation",
    source=SOURCE + "; the chain rule, with mean and variance as functions of x",
    inputs=(
        TensorSpec(name="x", shape="batch channels *spatial"),
        TensorSpec(name="weight", shape="channels"),
        TensorSpec(name="dy", shape="batch channels *spatial"),
    ),
    outputs=(
        TensorSpec(name="dx", shape="batch channels *spatial"),
        TensorSpec(name="dweight", shape="channels"),
        TensorSpec(name="dbias", shape="channels"),
    ),
    scalars=PARAMETERS,
    constraints=(WHOLE_GROUPS,),
    reference=reference,
    flops="16 * batch * channels * prod(spatial)",
    tolerance=Tolerance(
        errors=errors,
        shared=SHARED,
        about="a group's sums are shared by at least 32 accumulators; those over images may be added one after another",
    ),
    laws=(Law(name="shift_moves_nothing", about="dx sums up to 0 over a group", holds=shift_moves_nothing),),
    cases=CASES,
    workloads=WORKLOADS,
    grid=GRID,
    implementations=("cuda_groups", "triton_groups", "cpp_groups", "torch_eager", "torch_definition"),
)
