"""The gradient of topk_routing's weights with respect to the logits; which experts were chosen is given."""

from opforge.core.operator import Operator, TensorSpec, Tolerance
from opforge.definitions.routing import (
    CASES,
    DERIVED,
    ENOUGH,
    GRID,
    PARAMETERS,
    SOURCE,
    WORKLOADS,
    backward_errors,
    first_of_equals,
    gradients,
)


def reference(logits, chosen, dweights, *, k, score, normalise):
    return gradients(logits, chosen, dweights, {"score": score, "normalise": normalise})


def errors(inputs, outputs, scalars, dtype):
    return {"dlogits": backward_errors(inputs["logits"], inputs["chosen"], inputs["dweights"], scalars)}


def follows(inputs, scalars):
    return {"chosen": first_of_equals(inputs["logits"], scalars["k"])}


operator = Operator(
    name="topk_routing_backward",
    about="the gradient of the weights of routing with respect to the logits",
    source=SOURCE + "; the chain rule",
    inputs=(
        TensorSpec(name="logits", shape="*lead experts"),
        TensorSpec(
            name="chosen",
            shape="*lead places",
            dtype="int64",
            below="experts",
            distinct=True,
            about="each expert once in a row",
        ),
        TensorSpec(name="dweights", shape="*lead places", dtype="float32"),
    ),
    outputs=(TensorSpec(name="dlogits", shape="*lead experts", about="0 for experts without a part in the weights"),),
    scalars=PARAMETERS,
    derived=DERIVED,
    constraints=(ENOUGH,),
    reference=reference,
    follows=follows,
    differentiable=("logits", "dweights"),
    flops="8 * prod(lead) * experts",
    tolerance=Tolerance(errors=errors, about="weights made again from the logits, and a sum over k"),
    cases=CASES,
    workloads=WORKLOADS,
    grid=GRID,
    implementations=("cuda_warps", "triton_rows", "cpp_rows", "torch_eager"),
)
