"""Gaussian error linear unit: y = x * Phi(x), Phi the normal distribution function; exact, or by its tanh
approximation.
"""

import math

from opforge.core.definition.likeness import Like
from opforge.core.operator import Case, Law, Operator, Scalar, TensorSpec, Tolerance
from opforge.definitions.torch_calls import elementwise
from opforge.definitions.workloads import GELUS


def reference(x, *, approximate):
    if approximate == "tanh":
        return 0.5 * x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh())
    return 0.5 * x * (1 + (x / math.sqrt(2)).erf())


def magnitude(inputs, outputs, scalars):
    # x/2 and x/2 * erf are added up, and cancel for negative x: what remains carries the error of both
    return {"y": inputs["x"].abs()}


def between_zero_and_x(inputs, outputs, scalars):
    x, y = inputs["x"], outputs["y"]
    # as much slack as bfloat16 rounds, and as float32 leaves after cancelling
    slack = y.abs() / 256 + x.abs() * 1e-6 + 1e-7
    wrong = ((y < x.clamp(max=0) - slack) | (y > x.clamp(min=0) + slack)).sum().item()
    return None if wrong == 0 else f"{wrong} results do not lie between x and 0"


def bounded_below(inputs, outputs, scalars):
    # the minimum of either form is -0.17 (at x = -0.75); bfloat16 may round it by half a unit of 2^-10
    least = outputs["y"].min().item()
    return None if least >= -0.1706 else f"the least result is {least:.4g}; the function never falls below -0.1701"


def lower(input, approximate="none"):
    """As torch.nn.functional.gelu: exact, or by tanh."""
    if approximate not in ("none", "tanh"):
        return f"{approximate!r} is no form of gelu"
    return elementwise(input, approximate=approximate)


operator = Operator(
    name="gelu",
    about="Gaussian error linear unit, exact (erf) or approximated (tanh)",
    source="Hendrycks and Gimpel, Gaussian Error Linear Units, 2016",
    inputs=(TensorSpec(name="x", shape="*shape"),),
    outputs=(TensorSpec(name="y", shape="*shape"),),
    scalars=(
        Scalar(
            name="approximate",
            default="none",
            choices=("none", "tanh"),
            about='"none" by erf, "tanh" by the paper\'s approximation, as in PyTorch',
        ),
    ),
    reference=reference,
    # an erf, an exp or a tanh counted as one
    flops="5 * prod(shape)",
    tolerance=Tolerance(
        magnitude=magnitude, about="erf and tanh of a few float32 ulp, a sum that cancels for negative x, one rounding"
    ),
    laws=(
        Law(name="between_zero_and_x", about="Phi lies between 0 and 1", holds=between_zero_and_x),
        Law(name="bounded_below", about="the function's minimum is -0.17", holds=bounded_below),
    ),
    cases=(
        Case(name="one_element", axes={"shape": (1,)}, why="the smallest call: all of it is tail"),
        Case(name="scalar_rank", axes={"shape": ()}, why="a tensor without axes still has one element"),
        Case(name="empty", axes={"shape": (0, 16)}, why="no element at all"),
        Case(
            name="odd_ranks",
            axes={"shape": (2, 3, 5, 7)},
            scalars={"approximate": "tanh"},
            why="four odd axes, 210 elements: less than any block",
        ),
        Case(name="one_past_a_block", axes={"shape": (4097,)}, why="one past a block of 1024, 2048 or 4096"),
        Case(name="prime", axes={"shape": (70001,)}, why="several blocks and a ragged end"),
        Case(
            name="prime_tanh",
            axes={"shape": (70001,)},
            scalars={"approximate": "tanh"},
            why="the other form: taking one for the other is an error of 5e-4",
        ),
        Case(name="large", axes={"shape": (1025,)}, distribution="large", why="erf saturates: the result is x or 0"),
        Case(
            name="large_tanh",
            axes={"shape": (1025,)},
            distribution="large",
            scalars={"approximate": "tanh"},
            why="x cubed reaches 1e8 and exp overflows",
        ),
        Case(name="tiny", axes={"shape": (513,)}, distribution="tiny", why="near 0 the result is x / 2"),
        # not for the erf form: PyTorch's own on a CPU (oneDNN, torch 2.13) gives NaN at infinity and infinity at 3e38
        Case(
            name="special",
            axes={"shape": (263,)},
            distribution="special",
            scalars={"approximate": "tanh"},
            why="NaN, infinities, signed zeros; x cubed overflows",
        ),
        Case(
            name="misaligned",
            axes={"shape": (2051,)},
            layout="misaligned",
            why="vector accesses must not assume 16-byte addresses",
        ),
        Case(name="strided", axes={"shape": (1031,)}, layout="strided", why="every second element"),
    ),
    workloads=GELUS,
    implementations=("cuda_vectors", "triton_blocks", "tilelang_blocks", "cpp_simd", "torch_eager"),
    gradient="gelu_backward",
    like=(Like(function="torch.nn.functional.gelu", lower=lower, autocast=False),),
    used=("language models",),
)
