"""The gradient of cross_entropy: dx = dloss * (softmax(x) - onehot(target)), softmax made again from x."""

from opforge.core.definition.rounding_errors import Errors
from opforge.core.operator import Case, Law, Operator, Scalar, TensorSpec, Tolerance
from opforge.definitions.bounds.sums import exp_errors, few_ulps, finite
from opforge.definitions.cases import row_layouts
from opforge.definitions.workloads import vocabularies


def reference(x, target, dloss, *, ignore_index, label_smoothing):
    weights = (x - x.amax(dim=-1, keepdim=True)).exp()
    softmax = weights / weights.sum(dim=-1, keepdim=True)
    counted = target != ignore_index
    valid = (target >= 0) & (target < x.shape[-1])
    right = softmax.new_zeros(softmax.shape).scatter(-1, target.where(valid, target.new_zeros(())).unsqueeze(-1), 1.0)
    dx = dloss.unsqueeze(-1) * (softmax - (1 - label_smoothing) * right - label_smoothing / x.shape[-1])
    # no class has such an index: there is no answer
    dx = dx.where(valid.unsqueeze(-1), dx.new_full((), float("nan")))
    return dx.where(counted.unsqueeze(-1), dx.new_zeros(()))


def errors(inputs, outputs, scalars, dtype):
    x, target, dloss = inputs["x"], inputs["target"], inputs["dloss"]
    shifted = (x - x.amax(dim=-1, keepdim=True)).abs()
    softmax = (-shifted).exp() / (-shifted).exp().sum(dim=-1, keepdim=True)
    of_exp, of_sum = exp_errors(shifted, softmax)
    valid = (target >= 0) & (target < x.shape[-1])
    right = softmax.new_zeros(softmax.shape).scatter(-1, target.where(valid, target.new_zeros(())).unsqueeze(-1), 1.0)
    found = (of_exp + of_sum).times(finite(softmax)) + few_ulps(
        right + scalars["label_smoothing"] / x.shape[-1], 3.0, 1.0
    )
    # an exponential below 2^-126 may be flushed to 0 before it is multiplied by dloss
    found = (found + Errors(2.0**-125, 2.0**-125)).times(finite(dloss).unsqueeze(-1))
    # dloss may be multiplied by softmax and by the right class before they meet: an infinite one says NaN then
    reached = (dloss.abs().unsqueeze(-1) * (finite(softmax) + right)).nan_to_num(nan=0.0)
    return {"dx": Errors(found.largest, found.typical, reached)}


def rows_sum_to_zero(inputs, outputs, scalars):
    dx, dloss = outputs["dx"], inputs["dloss"]
    # each element is rounded to the output dtype: at worst all in one direction, by half an ulp
    worst = (dx.sum(dim=-1).abs() - dloss.abs() / 64).max().item()
    # where dx is subnormal in the output dtype (2^-24 apart in float16) it is relative to nothing
    return (
        None
        if worst <= 2**-24 * dx.shape[-1]
        else f"a row sums to {worst:.3g} more than |dloss| / 64: softmax and the right class weigh the same"
    )


operator = Operator(
    name="cross_entropy_backward",
    about="the gradient of cross_entropy with respect to the scores",
    source="softmax minus the wanted distribution: Bridle 1990; label smoothing: Szegedy et al., Rethinking the "
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
        TensorSpec(name="dloss", shape="*lead", about="the gradient of the loss of each row"),
    ),
    outputs=(
        TensorSpec(
            name="dx", shape="*lead classes", about="0 in rows that are ignored, NaN for an index that no class has"
        ),
    ),
    scalars=(
        Scalar(name="ignore_index", default=-100, about="rows with this target have gradient 0"),
        Scalar(
            name="label_smoothing",
            default=0.0,
            about="the part of the weight that is spread over all classes alike, in [0, 1]",
        ),
    ),
    reference=reference,
    flops="6 * prod(lead) * classes",
    tolerance=Tolerance(
        errors=errors,
        shared="classes",
        about="exp within a few units of its last place; the sum shared by at least 32 accumulators",
    ),
    laws=(
        Law(name="rows_sum_to_zero", about="softmax and the wanted distribution both sum to 1", holds=rows_sum_to_zero),
    ),
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
        Case(name="one_class", axes={"lead": (5,), "classes": 1}, why="softmax is exactly 1, every gradient exactly 0"),
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
            why="every class is wanted a little",
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
            why="softmax is close to 1/classes everywhere",
        ),
        Case(
            name="offset", axes={"lead": (4,), "classes": 333}, distribution="offset", why="a common offset must cancel"
        ),
        Case(
            name="constant_rows",
            axes={"lead": (4,), "classes": 96},
            distribution="constant_rows",
            why="softmax is 1/classes everywhere",
        ),
        Case(
            name="special",
            axes={"lead": (9,), "classes": 67},
            distribution="special",
            why="NaN and +inf make their row NaN; -inf, a mask, gets no gradient",
        ),
        Case(
            name="wide_special",
            axes={"lead": (17,), "classes": 4104},
            distribution="special",
            why="the same where a row has a block, and rows that do not count are among them",
        ),
        Case(
            name="wide_padded",
            axes={"lead": (12,), "classes": 2064},
            scalars={"ignore_index": 3},
            why="rows of a block, one of whose classes does not count",
        ),
        Case(
            name="wide_smoothed",
            axes={"lead": (3,), "classes": 8200},
            scalars={"label_smoothing": 0.1},
            why="rows of a block in which every class is wanted a little",
        ),
        Case(name="empty", axes={"lead": (0,), "classes": 16}, why="no rows at all"),
        Case(name="scalar_rank", axes={"lead": (), "classes": 100}, why="a vector of scores: no leading axis"),
        *row_layouts("classes"),
    ),
    workloads=vocabularies("classes"),
    implementations=(
        "cuda_onchip",
        "triton_onepass",
        "triton_online",
        "cpp_twopass",
        "torch_eager",
        "torch_definition",
    ),
)
