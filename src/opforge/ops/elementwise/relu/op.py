"""Rectified linear unit: y = max(x, 0), with NaN kept."""

from opforge.core.definition.likeness import Like
from opforge.core.operator import Case, Law, Operator, TensorSpec, Tolerance, Workload
from opforge.definitions.cases import ELEMENT_LAYOUTS, ELEMENTS
from opforge.definitions.torch_calls import elementwise


def reference(x):
    # a comparison with NaN is false, so NaN stays; the gradient at 0 is 0
    return x.masked_fill(x <= 0, 0.0)


def selects(inputs, outputs, scalars):
    x, y = inputs["x"], outputs["y"]
    wrong = ((y != x) & (y != 0)).sum().item()
    return None if wrong == 0 else f"{wrong} results are neither 0 nor the input"


def not_negative(inputs, outputs, scalars):
    least = outputs["y"].min().item()
    return None if least >= 0 else f"the least result is {least:.3g}"


def lower(input, inplace=False):
    """As torch.nn.functional.relu, where the result is not written over the input."""
    return elementwise(input, inplace)


operator = Operator(
    name="relu",
    about="rectified linear unit: x where it is positive, 0 elsewhere",
    source="Nair and Hinton, Rectified Linear Units Improve Restricted Boltzmann Machines, 2010",
    inputs=(TensorSpec(name="x", shape="*shape"),),
    outputs=(TensorSpec(name="y", shape="*shape"),),
    reference=reference,
    flops="prod(shape)",
    tolerance=Tolerance(factor=0.0, roundings=0.0, about="a selection rounds nothing: every result is exact"),
    laws=(
        Law(name="selects", about="each result is 0 or the input itself", holds=selects),
        Law(name="not_negative", about="no result is below 0", holds=not_negative),
    ),
    cases=(
        *ELEMENTS,
        Case(name="prime", axes={"shape": (70001,)}, why="several blocks and a ragged end"),
        Case(name="half_zeros", axes={"shape": (64, 33)}, distribution="sparse", why="exact zeros stay zeros"),
        Case(name="large", axes={"shape": (513,)}, distribution="large", why="nothing may be clipped from above"),
        Case(name="tiny", axes={"shape": (513,)}, distribution="tiny", why="small positive values must not be flushed"),
        Case(
            name="special",
            axes={"shape": (263,)},
            distribution="special",
            why="NaN stays NaN, -inf and -0 become 0, inf stays",
        ),
        *ELEMENT_LAYOUTS,
    ),
    workloads=(
        Workload(
            name="stem_resnet50_laptop",
            axes={"shape": (8, 64, 112, 112)},
            source="ResNet-50: after conv1, batch 8",
            scale="laptop",
        ),
        Workload(
            name="mlp_opt_125m",
            axes={"shape": (1024, 3072)},
            source="OPT-125M: feed-forward layer, 1024 tokens",
            scale="laptop",
        ),
        Workload(name="stem_resnet50", axes={"shape": (256, 64, 112, 112)}, source="ResNet-50: after conv1, batch 256"),
        Workload(
            name="conv4_resnet50",
            axes={"shape": (256, 1024, 14, 14)},
            source="ResNet-50: after the shortcut of conv4_x, batch 256",
        ),
        Workload(
            name="mlp_opt_6.7b", axes={"shape": (2048, 16384)}, source="OPT-6.7B: feed-forward layer, 2048 tokens"
        ),
    ),
    implementations=("cuda_vectors", "triton_blocks", "tilelang_blocks", "cpp_bits", "torch_eager"),
    like=(Like(function="torch.nn.functional.relu", lower=lower, autocast=False),),
)
