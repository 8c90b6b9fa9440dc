"""log_softmax over the last axis: y = x - max(x) - log(sum(exp(x - max(x))))."""

from opforge.core.definition.likeness import Like
from opforge.core.operator import Case, Law, Operator, TensorSpec, Tolerance
from opforge.definitions.bounds.sums import base_two_errors, exp_errors, few_ulps, finite
from opforge.definitions.cases import MANY_NARROW, ONE_PAST_A_WARP, ROWS, row_layouts, row_ranks
from opforge.definitions.torch_calls import along
from opforge.definitions.workloads import vocabularies


def reference(x):
    shifted = x - x.amax(dim=-1, keepdim=True)
    return shifted - shifted.exp().sum(dim=-1, keepdim=True).log()


def errors(inputs, outputs, scalars, dtype):
    x, y = inputs["x"], outputs["y"]
    top = x.amax(dim=-1, keepdim=True)
    shifted = x - top
    # a relative error of the sum is an absolute one of its logarithm
    _, of_sum = exp_errors(shifted, y.exp())
    return {"y": of_sum + base_two_errors(top) + few_ulps(1 + finite(shifted).abs() + finite(y).abs(), 3.0, 1.0)}


def exponentials_sum_to_one(inputs, outputs, scalars):
    y = outputs["y"]
    # rounding y to bfloat16 moves exp(y) by |y| / 512
    worst = (y.exp().sum(dim=-1) - 1).abs().max().item()
    allowed = 1 / 256 + y.abs().max().item() / 256
    return None if worst <= allowed else f"the exponentials of a row sum to 1 with an error of {worst:.3g}"


def lower(input, dim=None, _stacklevel=3, dtype=None):
    """As torch.nn.functional.log_softmax: along `dim`, where that is the innermost in memory."""
    return along(input, dim, dtype)


operator = Operator(
    name="log_softmax",
    about="log_softmax over the last axis",
    source="the logarithm of softmax (Bridle 1990), without forming softmax, which underflows",
    inputs=(TensorSpec(name="x", shape="*lead cols"),),
    outputs=(TensorSpec(name="y", shape="*lead cols"),),
    reference=reference,
    flops="4 * prod(lead) * cols",
    tolerance=Tolerance(
        errors=errors,
        shared="cols",
        about="exp and log within a few units of their last places; the sum shared by at least 32 accumulators",
    ),
    laws=(Law(name="exponentials_sum_to_one", about="logarithms of probabilities", holds=exponentials_sum_to_one),),
    cases=(
        *ROWS,
        ONE_PAST_A_WARP,
        Case(name="one_column", axes={"lead": (5,), "cols": 1}, why="every result is exactly 0"),
        MANY_NARROW,
        Case(
            name="wide",
            axes={"lead": (2,), "cols": 50257},
            why="GPT-2's vocabulary: rows that begin off the 16-byte grid",
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
            why="every result is close to -log(cols) and none is equal",
        ),
        Case(name="offset", axes={"lead": (4,), "cols": 333}, distribution="offset", why="a common offset must cancel"),
        Case(
            name="constant_rows",
            axes={"lead": (4,), "cols": 96},
            distribution="constant_rows",
            why="every result is -log(cols)",
        ),
        Case(
            name="special",
            axes={"lead": (9,), "cols": 67},
            distribution="special",
            why="NaN and +inf make their row NaN; -inf, a mask, stays",
        ),
        *row_ranks(),
        *row_layouts(),
    ),
    workloads=vocabularies(),
    implementations=(
        "cuda_onchip",
        "cuda_wide",
        "cuda_slices",
        "triton_onepass",
        "triton_online",
        "tilelang_onepass",
        "cpp_twopass",
        "torch_eager",
        "torch_definition",
    ),
    gradient="log_softmax_backward",
    like=(Like(function="torch.nn.functional.log_softmax", lower=lower),),
)
