"""y = x + b with b broadcast over any of the four axes: a bias of channels, a mask of attention scores, a table of
positions.
"""

from opforge.core.definition.likeness import Like, Lowered
from opforge.core.operator import Case, Constraint, Operator, TensorSpec, Workload
from opforge.definitions.tolerances import ONE_ADDITION
from opforge.definitions.torch_calls import added, spreads


def reference(x, b):
    return x + b


def lower(input, other, *, alpha=1, out=None):
    """As torch.add: four axes, of which the other operand has some and 1 elsewhere. What makes `input` larger is
    PyTorch's.
    """
    if reason := added(input, other, alpha, out):
        return reason
    four = input.ndim == other.ndim == 4
    if not four or spreads(input, other) or any(b not in (1, a) for a, b in zip(input.shape, other.shape, strict=True)):
        return "the operands have not four axes, of which the other has some and 1 elsewhere"
    return Lowered((input, other))


operator = Operator(
    name="broadcast_add",
    about="sum of a tensor and one that is broadcast over any of its four axes",
    source="the rules of NumPy: an axis of size 1 meets every index; missing axes are given as 1",
    inputs=(
        TensorSpec(name="x", shape="i j k l"),
        TensorSpec(name="b", shape="bi bj bk bl", about="each axis as long as that of x, or 1"),
    ),
    outputs=(TensorSpec(name="y", shape="i j k l"),),
    reference=reference,
    constraints=(
        Constraint(name="first_axis", expression="bi == i or bi == 1", about="b has the size of x there, or 1"),
        Constraint(name="second_axis", expression="bj == j or bj == 1", about="b has the size of x there, or 1"),
        Constraint(name="third_axis", expression="bk == k or bk == 1", about="b has the size of x there, or 1"),
        Constraint(name="last_axis", expression="bl == l or bl == 1", about="b has the size of x there, or 1"),
    ),
    flops="i * j * k * l",
    tolerance=ONE_ADDITION,
    cases=(
        Case(
            name="one_element",
            axes={"i": 1, "j": 1, "k": 1, "l": 1, "bi": 1, "bj": 1, "bk": 1, "bl": 1},
            why="every axis disappears",
        ),
        Case(
            name="channels_first",
            axes={"i": 3, "j": 5, "k": 8, "l": 8, "bi": 1, "bj": 5, "bk": 1, "bl": 1},
            why="[C] on NCHW, maps of whole vectors",
        ),
        Case(
            name="channels_first_odd",
            axes={"i": 2, "j": 37, "k": 7, "l": 7, "bi": 1, "bj": 37, "bk": 1, "bl": 1},
            why="49 positions: a vector spans channels",
        ),
        Case(
            name="mask",
            axes={"i": 2, "j": 3, "k": 32, "l": 32, "bi": 2, "bj": 1, "bk": 1, "bl": 32},
            why="[B,1,1,S] on [B,H,S,S]",
        ),
        Case(
            name="mask_odd",
            axes={"i": 2, "j": 3, "k": 33, "l": 31, "bi": 2, "bj": 1, "bk": 1, "bl": 31},
            why="a prime length: rows that start misaligned",
        ),
        Case(
            name="table",
            axes={"i": 3, "j": 4, "k": 17, "l": 24, "bi": 1, "bj": 4, "bk": 17, "bl": 24},
            why="a table for all sequences: two axes are left",
        ),
        Case(
            name="last_axis",
            axes={"i": 2, "j": 9, "k": 11, "l": 64, "bi": 1, "bj": 1, "bk": 1, "bl": 64},
            why="a bias of the last axis",
        ),
        Case(
            name="alternating",
            axes={"i": 3, "j": 5, "k": 7, "l": 16, "bi": 3, "bj": 1, "bk": 7, "bl": 1},
            why="no two neighbours alike: all four axes stay",
        ),
        Case(
            name="alternating_other",
            axes={"i": 3, "j": 5, "k": 7, "l": 16, "bi": 1, "bj": 5, "bk": 1, "bl": 16},
            why="the other way round",
        ),
        Case(
            name="equal_shapes",
            axes={"i": 3, "j": 5, "k": 7, "l": 13, "bi": 3, "bj": 5, "bk": 7, "bl": 13},
            why="nothing is broadcast",
        ),
        Case(
            name="one_number",
            axes={"i": 5, "j": 7, "k": 11, "l": 13, "bi": 1, "bj": 1, "bk": 1, "bl": 1},
            why="one value for every element",
        ),
        Case(
            name="empty",
            axes={"i": 0, "j": 3, "k": 4, "l": 5, "bi": 1, "bj": 3, "bk": 1, "bl": 1},
            why="no element at all, but a bias",
        ),
        Case(
            name="several_blocks",
            axes={"i": 5, "j": 64, "k": 12, "l": 12, "bi": 1, "bj": 64, "bk": 1, "bl": 1},
            why="more than one block of any kind",
        ),
        Case(
            name="special",
            axes={"i": 2, "j": 3, "k": 9, "l": 16, "bi": 2, "bj": 1, "bk": 1, "bl": 16},
            distribution="special",
            why="a mask is made of infinities: those of b reach every row, those of x only their own place",
        ),
        Case(
            name="large",
            axes={"i": 2, "j": 3, "k": 9, "l": 16, "bi": 1, "bj": 3, "bk": 1, "bl": 1},
            distribution="large",
            why="sums that a narrow intermediate would round away",
        ),
        Case(
            name="misaligned",
            axes={"i": 2, "j": 3, "k": 9, "l": 32, "bi": 1, "bj": 1, "bk": 9, "bl": 32},
            layout="misaligned",
            why="vector accesses must not assume 16-byte addresses",
        ),
        Case(
            name="channels_last",
            axes={"i": 2, "j": 16, "k": 6, "l": 5, "bi": 1, "bj": 16, "bk": 1, "bl": 1},
            layout="channels_last",
            why="strides that are not row-major",
        ),
    ),
    workloads=(
        Workload(
            name="bias_resnet50_laptop",
            axes={"i": 8, "j": 256, "k": 56, "l": 56, "bi": 1, "bj": 256, "bk": 1, "bl": 1},
            source="ResNet-50: conv2_x, batch 8",
            scale="laptop",
        ),
        Workload(
            name="mask_bert_base",
            axes={"i": 8, "j": 12, "k": 128, "l": 128, "bi": 8, "bj": 1, "bk": 1, "bl": 128},
            source="BERT base: padding mask on the scores, 8 sequences of 128",
            scale="laptop",
        ),
        Workload(
            name="seed_high_rank",
            axes={"i": 1, "j": 1024, "k": 1024, "l": 256, "bi": 1, "bj": 1, "bk": 1, "bl": 256},
            source="seed 003: [batch, 1024, 1024, 256] and [256], batch 1",
        ),
        Workload(
            name="bias_resnet50",
            axes={"i": 256, "j": 256, "k": 56, "l": 56, "bi": 1, "bj": 256, "bk": 1, "bl": 1},
            source="ResNet-50: conv2_x, batch 256",
        ),
        Workload(
            name="mask_bert_large",
            axes={"i": 32, "j": 16, "k": 512, "l": 512, "bi": 32, "bj": 1, "bk": 1, "bl": 512},
            source="BERT large: padding mask on the scores, 32 sequences of 512",
        ),
    ),
    implementations=("cuda_flat", "triton_tiles", "cpp_rows", "torch_eager"),
    like=(Like(function="torch.add", lower=lower, autocast=False),),
)
