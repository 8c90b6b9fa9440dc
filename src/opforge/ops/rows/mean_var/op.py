"""Mean and population variance over the last axis: mean = sum(x) / cols, var = sum((x - mean)^2) / cols."""

from opforge.core.definition.rounding_errors import Errors
from opforge.core.operator import Case, Constraint, Law, Operator, TensorSpec, Tolerance, Workload
from opforge.definitions.bounds.rows import centred_row, where_squares_fit
from opforge.definitions.cases import (
    LARGE_SQUARES,
    MANY_NARROW,
    OFFSET_SQUARES,
    ONE_PAST_A_WARP,
    ROWS,
    WIDE_NORMS,
    row_layouts,
)


def reference(x):
    mean = x.mean(dim=-1)
    centred = x - mean.unsqueeze(-1)
    return mean, (centred * centred).mean(dim=-1)


def errors(inputs, outputs, scalars, dtype):
    # A variance taken as E[x^2] - E[x]^2 is off by more than this, far more when the mean outweighs the deviation
    # (Chan, Golub and LeVeque 1983, whose worst cases are n e mean|x| sqrt(var) for updates, n e mean(x^2) for one
    # pass). A sum or square beyond float32 reaches what is kept here.
    x = inputs["x"]
    row = centred_row(x, 0.0)
    mean, var = (Errors(each.largest.squeeze(-1), each.typical.squeeze(-1)) for each in (row.of_mean, row.of_variance))
    return {
        "mean": Errors(mean.largest, mean.typical, x.abs().sum(dim=-1)),
        "var": where_squares_fit(var, row.squares.squeeze(-1), outputs["var"].abs()),
    }


def between_extremes(inputs, outputs, scalars):
    x, mean = inputs["x"], outputs["mean"]
    # a mean is rounded to the output dtype, bfloat16 at the coarsest: half an ulp is 2^-8 of it
    slack = 2.0**-8 * x.abs().amax(dim=-1)
    outside = ((mean < x.amin(dim=-1) - slack) | (mean > x.amax(dim=-1) + slack)).sum().item()
    return None if not outside else f"{outside} means lie outside the values of their row"


def within_popoviciu(inputs, outputs, scalars):
    # T. Popoviciu, 1935: a variance is at most a quarter of the square of the range; and it is not negative
    x, var = inputs["x"], outputs["var"]
    spread = x.amax(dim=-1) - x.amin(dim=-1)
    # the rounding of var to bfloat16, and of a float32 mean
    ceiling = spread * spread / 4 * (1 + 2.0**-7) + (2.0**-14 * x.abs().amax(dim=-1)) ** 2
    # float16 has steps of 2^-24 below its normal numbers
    ceiling = ceiling + 2.0**-25 * ((var < 2.0**-14) & ((var * 2.0**24) % 1 == 0))
    outside = ((var < 0) | (var > ceiling)).sum().item()
    return None if not outside else f"{outside} variances are negative or exceed a quarter of the squared range"


operator = Operator(
    name="mean_var",
    about="mean and population variance (correction 0) over the last axis",
    source="Chan, Golub and LeVeque, Algorithms for Computing the Sample Variance, The American Statistician 37, 1983",
    inputs=(TensorSpec(name="x", shape="*lead cols"),),
    outputs=(TensorSpec(name="mean", shape="*lead"), TensorSpec(name="var", shape="*lead")),
    constraints=(Constraint(name="has_columns", expression="cols >= 1", about="the mean of nothing is not defined"),),
    reference=reference,
    flops="4 * prod(lead) * cols",
    tolerance=Tolerance(
        errors=errors,
        about="a row's sums are shared by at least 32 accumulators",
    ),
    laws=(
        Law(name="between_extremes", about="min(x) <= mean <= max(x)", holds=between_extremes),
        Law(name="within_popoviciu", about="0 <= var <= (max - min)^2 / 4", holds=within_popoviciu),
    ),
    cases=(
        *ROWS,
        ONE_PAST_A_WARP,
        Case(name="bert", axes={"lead": (9,), "cols": 768}, why="BERT's width: no power of two, whole 16-byte vectors"),
        Case(name="one_column", axes={"lead": (5,), "cols": 1}, why="the mean is the value, the variance exactly 0"),
        Case(
            name="two_columns",
            axes={"lead": (5,), "cols": 2},
            why="correction 1 instead of 0 would double the variance",
        ),
        MANY_NARROW,
        *WIDE_NORMS,
        OFFSET_SQUARES,
        Case(
            name="skewed",
            axes={"lead": (4,), "cols": 1500},
            distribution="skewed",
            why="a few values carry most of the variance",
        ),
        LARGE_SQUARES,
        Case(
            name="tiny_values",
            axes={"lead": (4,), "cols": 500},
            distribution="tiny",
            why="a variance below float16's smallest normal number",
        ),
        Case(
            name="constant_rows",
            axes={"lead": (4,), "cols": 96},
            distribution="constant_rows",
            why="the variance is 0, never negative",
        ),
        Case(
            name="special",
            axes={"lead": (9,), "cols": 67},
            distribution="special",
            why="the mean of a row with one infinity is infinite, its variance NaN",
        ),
        Case(name="empty", axes={"lead": (0,), "cols": 16}, why="no rows at all"),
        Case(name="vector", axes={"lead": (), "cols": 100}, why="a vector: the results are scalars"),
        *row_layouts(),
    ),
    workloads=(
        Workload(
            name="bert_base",
            axes={"lead": (4, 512), "cols": 768},
            source="BERT-base: statistics of a layer norm, hidden size 768, 4 sequences of 512",
            scale="laptop",
        ),
        Workload(
            name="sd15_unet_2",
            axes={"lead": (2, 32), "cols": 40960},
            source="Stable Diffusion 1.5 UNet: group norm of 320 channels at 64x64, 32 groups of 10 channels, batch 2",
            scale="laptop",
        ),
        Workload(
            name="bert_large",
            axes={"lead": (64, 512), "cols": 1024},
            source="BERT-large: statistics of a layer norm, hidden size 1024, 64 sequences of 512",
        ),
        Workload(
            name="sd15_unet_16",
            axes={"lead": (16, 32), "cols": 40960},
            source="Stable Diffusion 1.5 UNet: group norm of 320 channels at 64x64, 32 groups of 10 channels, batch 16",
        ),
        Workload(
            name="gpt3_175b",
            axes={"lead": (2, 2048), "cols": 12288},
            source="GPT-3 175B: statistics of a layer norm, d_model 12288, 2 contexts of 2048",
        ),
    ),
    implementations=(
        "cuda_persistent",
        "cuda_onchip",
        "triton_onchip",
        "tilelang_twopass",
        "cpp_twopass",
        "torch_eager",
        "torch_definition",
    ),
)
