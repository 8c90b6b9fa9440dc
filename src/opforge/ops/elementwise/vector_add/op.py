"""Elementwise sum of two tensors of one shape: z = x + y."""

from opforge.core.definition.likeness import Like, Lowered
from opforge.core.operator import Case, Operator, TensorSpec, Workload
from opforge.definitions.cases import ELEMENT_LAYOUTS
from opforge.definitions.tolerances import ONE_ADDITION
from opforge.definitions.torch_calls import added


def reference(x, y):
    return x + y


def lower(input, other, *, alpha=1, out=None):
    """As torch.add: two tensors of one shape."""
    if reason := added(input, other, alpha, out):
        return reason
    return Lowered((input, other)) if other.shape == input.shape else "the shapes differ"


operator = Operator(
    name="vector_add",
    about="elementwise sum of two tensors of one shape",
    source="the residual connection of He et al., Deep Residual Learning for Image Recognition, 2015",
    inputs=(TensorSpec(name="x", shape="*shape"), TensorSpec(name="y", shape="*shape")),
    outputs=(TensorSpec(name="z", shape="*shape"),),
    reference=reference,
    flops="prod(shape)",
    # one addition in float32 (half an ulp of it), then one rounding to the output dtype
    tolerance=ONE_ADDITION,
    cases=(
        Case(name="one_element", axes={"shape": (1,)}, why="the smallest call: all of it is tail"),
        Case(name="scalar_rank", axes={"shape": ()}, why="a tensor without axes still has one element"),
        Case(name="empty", axes={"shape": (3, 0, 5)}, why="no element at all"),
        Case(name="odd_ranks", axes={"shape": (2, 3, 5, 7)}, why="four odd axes, 210 elements: less than any block"),
        Case(name="one_past_a_block", axes={"shape": (4097,)}, why="one past a block of 1024, 2048 or 4096"),
        Case(name="prime", axes={"shape": (70001,)}, why="several blocks and a ragged end"),
        Case(
            name="cancelling",
            axes={"shape": (31, 67)},
            distribution="offset",
            why="values near 100: bfloat16 sums that were not made in float32 show",
        ),
        Case(
            name="exact",
            axes={"shape": (999,)},
            distribution="integers",
            why="small integers add exactly in every dtype",
        ),
        Case(
            name="large",
            axes={"shape": (513,)},
            distribution="large",
            why="sums that a narrow intermediate would round away",
        ),
        Case(name="tiny", axes={"shape": (513,)}, distribution="tiny", why="float16 sums among its subnormals"),
        Case(
            name="special",
            axes={"shape": (263,)},
            distribution="special",
            why="NaN, infinities, signed zeros, and a sum that overflows",
        ),
        *ELEMENT_LAYOUTS,
    ),
    workloads=(
        Workload(
            name="residual_gpt2",
            axes={"shape": (4, 1024, 768)},
            source="GPT-2 small: residual stream, 4 sequences of 1024",
            scale="laptop",
        ),
        Workload(
            name="residual_resnet50_laptop",
            axes={"shape": (8, 256, 56, 56)},
            source="ResNet-50: shortcut of conv2_x, batch 8",
            scale="laptop",
        ),
        Workload(
            name="residual_llama3_8b", axes={"shape": (8192, 4096)}, source="Llama 3 8B: residual stream, 8192 tokens"
        ),
        Workload(
            name="residual_resnet50",
            axes={"shape": (256, 256, 56, 56)},
            source="ResNet-50: shortcut of conv2_x, batch 256",
        ),
        Workload(
            name="residual_llama3_8b_decode",
            axes={"shape": (64, 4096)},
            source="Llama 3 8B: residual stream, 64 sequences decoding: launch-bound",
        ),
    ),
    implementations=("cuda_vectors", "triton_blocks", "tilelang_blocks", "cpp_simd", "torch_eager"),
    like=(Like(function="torch.add", lower=lower, autocast=False),),
    used=("language models",),
)
