"""softmax over the last axis: y = exp(x - max(x)) / sum(exp(x - max(x)))."""

from opforge.core.definition.likeness import Like
from opforge.core.operator import Case, Law, Operator, TensorSpec, Tolerance
from opforge.definitions.bounds.sums import exp_errors, finite
from opforge.definitions.cases import MANY_NARROW, ONE_PAST_A_WARP, ROWS, row_layouts, row_ranks
from opforge.definitions.torch_calls import along
from opforge.definitions.workloads import ROW_SWEEP, SOFTMAXES


def reference(x):
    shifted = (x - x.amax(dim=-1, keepdim=True)).exp()
    return shifted / shifted.sum(dim=-1, keepdim=True)


def errors(inputs, outputs, scalars, dtype):
    x, y = inputs["x"], outputs["y"]
    of_exp, of_sum = exp_errors(x - x.amax(dim=-1, keepdim=True), y)
    return {"y": (of_exp + of_sum).times(finite(y))}


def rows_sum_to_one(inputs, outputs, scalars):
    y = outputs["y"]
    # each element is rounded to the output dtype: at worst all in one direction, by half an ulp
    worst = (y.sum(dim=-1) - 1).abs().max().item()
    return None if worst <= 1 / 256 else f"a row sums to 1 with an error of {worst:.3g}"


def lower(input, dim=None, _stacklevel=3, dtype=None):
    """As torch.nn.functional.softmax: along `dim`, where that is the innermost in memory."""
    return along(input, dim, dtype)


operator = Operator(
    name="softmax",
    about="softmax over the last axis",
    source="Bridle 1990; the shift by the row's maximum keeps exp from overflowing",
    inputs=(TensorSpec(name="x", shape="*lead cols"),),
    outputs=(TensorSpec(name="y", shape="*lead cols"),),
    reference=reference,
    flops="5 * prod(lead) * cols",
    tolerance=Tolerance(
        errors=errors,
        shared="cols",
        about="exp within a few units of its last place; the sum shared by at least 32 accumulators",
    ),
    laws=(Law(name="rows_sum_to_one", about="probabilities", holds=rows_sum_to_one),),
    cases=(
        *ROWS,
        ONE_PAST_A_WARP,
        Case(name="one_column", axes={"lead": (5,), "cols": 1}, why="every result is exactly 1"),
        MANY_NARROW,
        Case(
            name="wide",
            axes={"lead": (2,), "cols": 50257},
            why="GPT-2's vocabulary: zeros would pass a fixed tolerance of 1e-3",
        ),
        Case(
            name="wider", axes={"lead": (1,), "cols": 70001}, why="past 65536 elements, the most that one program holds"
        ),
        Case(
            name="large_values",
            axes={"lead": (4,), "cols": 257},
            distribution="large",
            why="exp overflows without the shift",
        ),
        Case(
            name="tiny_values",
            axes={"lead": (4,), "cols": 257},
            distribution="tiny",
            why="every result is close to 1/cols and none is equal",
        ),
        Case(name="offset", axes={"lead": (4,), "cols": 333}, distribution="offset", why="a common offset must cancel"),
        Case(
            name="constant_rows",
            axes={"lead": (4,), "cols": 96},
            distribution="constant_rows",
            why="every result is 1/cols",
        ),
        Case(
            name="special",
            axes={"lead": (9,), "cols": 67},
            distribution="special",
            why="NaN and +inf make their row NaN; -inf, a mask, makes a 0",
        ),
        *row_ranks(),
        *row_layouts(),
    ),
    workloads=(*SOFTMAXES, *ROW_SWEEP),
    implementations=(
        "cuda_onchip",
        "cuda_block",
        "cuda_wide",
        "cuda_slices",
        "triton_onepass",
        "triton_online",
        "tilelang_onepass",
        "cpp_twopass",
        "torch_eager",
        "library_liger",
    ),
    gradient="softmax_backward",
    like=(Like(function="torch.nn.functional.softmax", lower=lower),),
    used=("language models",),
)
