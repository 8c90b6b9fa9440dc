"""cross_entropy of each row with the index of its right class: loss = log(sum(exp(x))) - x[target]."""

from opforge.core.definition.likeness import Like, Lowered
from opforge.core.definition.rounding_errors import Errors
from opforge.core.operator import Case, Law, Operator, Scalar, TensorSpec, Tolerance
from opforge.definitions.bounds.sums import base_two_errors, exp_errors, few_ulps, finite, sum_errors
from opforge.definitions.cases import row_layouts
from opforge.definitions.torch_calls import unfit
from opforge.definitions.workloads import vocabularies


def reference(x, target, *, ignore_index, label_smoothing):
    top = x.amax(dim=-1, keepdim=True)
    shifted = x - top
    log_sum = shifted.exp().sum(dim=-1).log()
    counted = target != ignore_index
    valid = (target >= 0) & (target < x.shape[-1])
    right = shifted.gather(-1, target.where(valid, target.new_zeros(())).unsqueeze(-1)).squeeze(-1)
    loss = log_sum - right
    if label_smoothing:
        loss = (1 - label_smoothing) * loss + label_smoothing * (log_sum - shifted.mean(dim=-1))
    # no class has such an index: there is no answer
    loss = loss.where(valid, loss.new_full((), float("nan")))
    return loss.where(counted, loss.new_zeros(()))


def errors(inputs, outputs, scalars, dtype):
    x, target = inputs["x"], inputs["target"]
    top = x.amax(dim=-1, keepdim=True)
    shifted = (x - top).abs()
    weights = (-shifted).exp()
    total = weights.sum(dim=-1, keepdim=True)
    # a relative error of the sum is an absolute one of its logarithm
    _, of_sum = exp_errors(shifted, weights / total)
    of_sum, total = Errors(of_sum.largest.squeeze(-1), of_sum.typical.squeeze(-1)), total.squeeze(-1)
    valid = (target >= 0) & (target < x.shape[-1])
    right = shifted.gather(-1, target.where(valid, target.new_zeros(())).unsqueeze(-1)).squeeze(-1)
    found = (
        of_sum + base_two_errors(top.squeeze(-1)) + few_ulps(1 + finite(total.log()).abs() + finite(right), 3.0, 1.0)
    )
    if scalars["label_smoothing"]:
        # the mean may be that of x or of x - max
        sums = sum_errors(x) + sum_errors(shifted)
        means = Errors(sums.largest.squeeze(-1), sums.typical.squeeze(-1)).times(
            scalars["label_smoothing"] / x.shape[-1]
        )
        found = (
            found
            + means
            + few_ulps(scalars["label_smoothing"] * finite(x.abs().mean(dim=-1) + shifted.mean(dim=-1)), 3.0, 1.0)
        )
    return {"loss": found.times(1.0 * (target != scalars["ignore_index"]))}


def never_negative(inputs, outputs, scalars):
    lowest = outputs["loss"].min().item()
    return None if lowest >= -1e-3 else f"a loss of {lowest:.3g}: no probability is above 1"


def lower(
    input,
    target,
    weight=None,
    size_average=None,
    ignore_index=-100,
    reduce=None,
    reduction="mean",
    label_smoothing=0.0,
):
    """As torch.nn.functional.cross_entropy: indices of classes without class weights, where the classes are innermost
    in memory. An index that no class has is PyTorch's error on a CPU;
    on a GPU, and in a compiled graph, its loss is NaN.
    """
    import torch

    if weight is not None:
        return "cross_entropy has no class weights"
    if size_average is not None or reduce is not None or reduction not in ("none", "mean", "sum"):
        return "its reduction is none of none, mean and sum"
    if reason := unfit(input):
        return reason
    if not isinstance(target, torch.Tensor) or target.dtype != torch.int64 or target.device != input.device:
        return "cross_entropy takes targets in int64 on the device of the scores"
    if input.ndim == 0 or not 0.0 <= label_smoothing <= 1.0:
        return "these arguments are no scores of classes"
    scores = input if input.ndim <= 2 else input.movedim(1, -1)
    if scores.shape[:-1] != target.shape or not scores.is_contiguous() or scores.shape[-1] == 0:
        return "the classes are not innermost in memory, or the targets are of another shape"

    if target.is_cpu and target.numel() and not torch.compiler.is_compiling():
        low, high = target.aminmax()
        if low < 0 or high >= scores.shape[-1]:
            strange = ((target < 0) | (target >= scores.shape[-1])) & (target != ignore_index)
            if bool(strange.any()):
                return "a target is the index of no class"

    def reduced(losses):
        if reduction == "none":
            return losses
        total = losses.sum()
        return total if reduction == "sum" else total / (target != ignore_index).sum()

    return Lowered((scores, target), {"ignore_index": ignore_index, "label_smoothing": float(label_smoothing)}, reduced)


operator = Operator(
    name="cross_entropy",
    about="cross-entropy of each row of scores with its right class",
    source="the negative logarithm of softmax at the right class; label smoothing: Szegedy et al., Rethinking the "
    "Inception Architecture, 2016, section 7",
    inputs=(
        TensorSpec(name="x", shape="*lead classes", about="scores, not normalised"),
        TensorSpec(
            name="target",
            shape="*lead",
            dtype="int64",
            below="classes",
            sometimes=("ignore_index",),
            about="the right class of each row, or ignore_index",
        ),
    ),
    outputs=(
        TensorSpec(name="loss", shape="*lead", about="0 for rows that are ignored, NaN for an index that no class has"),
    ),
    scalars=(
        Scalar(name="ignore_index", default=-100, about="rows with this target have loss 0"),
        Scalar(
            name="label_smoothing",
            default=0.0,
            about="the part of the weight that is spread over all classes alike, in [0, 1]",
        ),
    ),
    reference=reference,
    flops="4 * prod(lead) * classes",
    tolerance=Tolerance(
        errors=errors,
        about="exp and log within a few units of their last places; the sum shared by at least 32 accumulators",
    ),
    laws=(Law(name="never_negative", about="minus the logarithm of a probability", holds=never_negative),),
    cases=(
        Case(name="one_row", axes={"lead": (1,), "classes": 64}, why="the smallest useful call"),
        Case(name="odd_tail", axes={"lead": (37,), "classes": 129}, why="one past a block of 128"),
        Case(
            name="prime", axes={"lead": (3, 5), "classes": 1021}, why="a prime number of classes and two leading axes"
        ),
        Case(
            name="past_one_warp",
            axes={"lead": (3,), "classes": 2056},
            why="past what a warp keeps in registers, in whole 16-byte vectors",
        ),
        Case(name="one_class", axes={"lead": (5,), "classes": 1}, why="every loss is exactly 0"),
        Case(
            name="many_narrow",
            axes={"lead": (130,), "classes": 8},
            why="more rows than one program takes, each narrower than a warp",
        ),
        Case(
            name="wide",
            axes={"lead": (4,), "classes": 50257},
            why="GPT-2's vocabulary: rows that begin off the 16-byte grid",
        ),
        Case(name="wider", axes={"lead": (2,), "classes": 65544}, why="past 65536 elements, in whole 16-byte vectors"),
        Case(
            name="smoothed",
            axes={"lead": (19,), "classes": 333},
            scalars={"label_smoothing": 0.1},
            why="every class takes part in the loss",
        ),
        Case(
            name="padded",
            axes={"lead": (64,), "classes": 20},
            scalars={"ignore_index": 3},
            why="a class that is there and does not count",
        ),
        Case(
            name="large_values",
            axes={"lead": (4,), "classes": 257},
            distribution="large",
            why="exp overflows without the shift",
        ),
        Case(
            name="tiny_values",
            axes={"lead": (4,), "classes": 257},
            distribution="tiny",
            why="every loss is close to log(classes)",
        ),
        Case(
            name="offset", axes={"lead": (4,), "classes": 333}, distribution="offset", why="a common offset must cancel"
        ),
        Case(
            name="constant_rows",
            axes={"lead": (4,), "classes": 96},
            distribution="constant_rows",
            why="every loss is log(classes)",
        ),
        Case(
            name="special",
            axes={"lead": (9,), "classes": 67},
            distribution="special",
            why="NaN and +inf make their row NaN; -inf, a mask, takes no part",
        ),
        Case(name="empty", axes={"lead": (0,), "classes": 16}, why="no rows at all"),
        Case(name="scalar_rank", axes={"lead": (), "classes": 100}, why="a vector of scores: no leading axis"),
        *row_layouts("classes"),
    ),
    workloads=vocabularies("classes"),
    implementations=("cuda_onchip", "triton_online", "cpp_twopass", "torch_eager", "torch_definition"),
    gradient="cross_entropy_backward",
    like=(Like(function="torch.nn.functional.cross_entropy", lower=lower),),
    used=("language models",),
)
