"""Gradients of rotary: what arrives is turned back, by the negative angles."""

from opforge.core.operator import Law, Operator, TensorSpec
from opforge.definitions.rotary import (
    ANGLES,
    BYTES_READ,
    CASES,
    CONSTRAINTS,
    FLOPS,
    GRID,
    INTERLEAVED,
    SOURCE,
    WORKLOADS,
    longer_by_the_radius,
    rotation,
    tolerance_of,
)


def reference(dq_out, dk_out, cos, sin, positions, *, interleaved):
    return rotation(dq_out, dk_out, cos, sin, positions, interleaved, sign=-1.0)


def pairs_keep_their_length(inputs, outputs, scalars):
    return longer_by_the_radius(inputs, scalars, inputs["dq_out"], outputs["dq"]) or longer_by_the_radius(
        inputs, scalars, inputs["dk_out"], outputs["dk"]
    )


operator = Operator(
    name="rotary_backward",
    about="gradients of rotary position embedding: the rotation by the negative angles",
    source=SOURCE,
    inputs=(
        TensorSpec(name="dq_out", shape="*batch tokens heads dim"),
        TensorSpec(name="dk_out", shape="*batch tokens kv_heads dim"),
        *ANGLES,
    ),
    outputs=(
        TensorSpec(name="dq", shape="*batch tokens heads dim"),
        TensorSpec(name="dk", shape="*batch tokens kv_heads dim"),
    ),
    scalars=(INTERLEAVED,),
    constraints=CONSTRAINTS,
    reference=reference,
    differentiable=("dq_out", "dk_out"),
    flops=FLOPS,
    bytes_read=BYTES_READ,
    tolerance=tolerance_of((("dq", "dq_out"), ("dk", "dk_out"))),
    laws=(
        Law(
            name="pairs_keep_their_length",
            about="turning back changes no length either",
            holds=pairs_keep_their_length,
        ),
    ),
    cases=CASES,
    workloads=WORKLOADS,
    grid=GRID,
    implementations=("cuda_tokens", "triton_heads", "cpp_tokens", "torch_eager"),
)
