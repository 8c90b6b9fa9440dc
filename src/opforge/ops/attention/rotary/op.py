"""Rotary positions: pairs of elements of queries and keys turned by the angles of their places, both in one pass."""

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


def reference(q, k, cos, sin, positions, *, interleaved):
    return rotation(q, k, cos, sin, positions, interleaved)


def pairs_keep_their_length(inputs, outputs, scalars):
    return longer_by_the_radius(inputs, scalars, inputs["q"], outputs["q_out"]) or longer_by_the_radius(
        inputs, scalars, inputs["k"], outputs["k_out"]
    )


operator = Operator(
    name="rotary",
    about="rotary position embedding of queries and keys in one pass",
    source=SOURCE,
    inputs=(
        TensorSpec(name="q", shape="*batch tokens heads dim"),
        TensorSpec(name="k", shape="*batch tokens kv_heads dim"),
        *ANGLES,
    ),
    outputs=(
        TensorSpec(name="q_out", shape="*batch tokens heads dim"),
        TensorSpec(name="k_out", shape="*batch tokens kv_heads dim"),
    ),
    scalars=(INTERLEAVED,),
    constraints=CONSTRAINTS,
    reference=reference,
    differentiable=("q", "k"),
    flops=FLOPS,
    bytes_read=BYTES_READ,
    tolerance=tolerance_of((("q_out", "q"), ("k_out", "k"))),
    laws=(
        Law(
            name="pairs_keep_their_length",
            about="a rotation changes no length, and a pair (cos, sin) of length r makes it r times as long",
            holds=pairs_keep_their_length,
        ),
    ),
    cases=CASES,
    workloads=WORKLOADS,
    grid=GRID,
    gradient="rotary_backward",
    implementations=("cuda_tokens", "triton_heads", "cpp_tokens", "torch_eager"),
    used=("language models",),
)
