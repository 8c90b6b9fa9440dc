"""topk_routing: the k experts of each token with the largest scores, and their weights; of equal ones the first."""

from opforge.core.operator import Law, Operator, TensorSpec, Ties, Tolerance
from opforge.definitions.routing import (
    CASES,
    DERIVED,
    ENOUGH,
    GRID,
    PARAMETERS,
    SOURCE,
    VANISHING,
    WORKLOADS,
    first_of_equals,
    forward_errors,
    weights_of,
)


def reference(logits, *, k, score, normalise):
    chosen = first_of_equals(logits, k)
    return weights_of(logits, chosen, {"score": score, "normalise": normalise}), chosen


def errors(inputs, outputs, scalars, dtype):
    return {"weights": forward_errors(inputs["logits"], outputs, scalars)}


def larger_ones_first(inputs, outputs, scalars):
    weights = outputs["weights"]
    rise = (weights.diff(dim=-1) - 2.0**-16 * weights[..., 1:].abs() - 2.0**-124).clamp(min=0)
    if rise.numel() and rise.max().item() > 0:
        return "a weight is larger than the one before it"
    total = weights.sum(dim=-1)
    if scalars["normalise"] and bool(((total - 1).abs() > 2.0**-12).any()):
        return "normalised weights do not sum to 1"
    return None


operator = Operator(
    name="topk_routing",
    about="the experts that each token goes to, and their weights",
    source=SOURCE,
    inputs=(TensorSpec(name="logits", shape="*lead experts"),),
    outputs=(
        TensorSpec(name="weights", shape="*lead places", dtype="float32", about="in float32 whatever the logits are"),
        TensorSpec(
            name="chosen",
            shape="*lead places",
            dtype="int64",
            ties=Ties(rule="first", scores="logits"),
            about="the expert with the largest logit first",
        ),
    ),
    scalars=PARAMETERS,
    derived=DERIVED,
    constraints=(ENOUGH,),
    reference=reference,
    flops="(k + 5) * prod(lead) * experts",
    tolerance=Tolerance(errors=errors, about="exp within a few units of its last place; a sum of positive terms"),
    laws=(
        Law(
            name="larger_ones_first",
            about="weights fall, and sum to 1 where they are normalised",
            holds=larger_ones_first,
        ),
    ),
    cases=(*CASES, VANISHING),
    workloads=WORKLOADS,
    grid=GRID,
    gradient="topk_routing_backward",
    implementations=("cuda_warps", "triton_rows", "cpp_rows", "torch_eager"),
    used=("language models",),
)
