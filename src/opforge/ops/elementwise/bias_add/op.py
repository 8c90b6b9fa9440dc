"""A lower-rank tensor broadcast over the last axes of a higher-rank one: y = x + bias, any ranks."""

from opforge.core.definition.likeness import Like, Lowered
from opforge.core.operator import Case, Operator, TensorSpec, Workload
from opforge.definitions.tolerances import ONE_ADDITION
from opforge.definitions.torch_calls import added, spreads


def reference(x, bias):
    return x + bias


def lower(input, other, *, alpha=1, out=None):
    """As torch.add: a tensor, and one of its last axes."""
    if reason := added(input, other, alpha, out):
        return reason
    if other.shape == input.shape or not spreads(input, other):
        return "the other operand has not the shape of the last axes"
    return Lowered((input, other))


operator = Operator(
    name="bias_add",
    about="a lower-rank tensor added to a higher-rank one, broadcast over its leading axes",
    source="the Broadcast operator of seeds 001 and 003, with the sum that its Triton kernel leaves out",
    inputs=(TensorSpec(name="x", shape="*lead *tail"), TensorSpec(name="bias", shape="*tail")),
    outputs=(TensorSpec(name="y", shape="*lead *tail"),),
    reference=reference,
    flops="prod(lead) * prod(tail)",
    # one addition in float32 (half an ulp of it), then one rounding to the output dtype
    tolerance=ONE_ADDITION,
    cases=(
        Case(name="one_element", axes={"lead": (1,), "tail": (1,)}, why="the smallest call: all of it is tail"),
        Case(name="scalar_ranks", axes={"lead": (), "tail": ()}, why="neither tensor has an axis"),
        Case(
            name="scalar_bias",
            axes={"lead": (5, 41), "tail": ()},
            why="a bias without axes: one value for every element",
        ),
        Case(name="equal_ranks", axes={"lead": (), "tail": (7, 33)}, why="nothing to broadcast over: one row"),
        Case(name="empty_lead", axes={"lead": (0, 4), "tail": (9,)}, why="no element at all, but a bias"),
        Case(
            name="odd_tail",
            axes={"lead": (7, 3), "tail": (129,)},
            why="one past a block of 128, rows that start misaligned",
        ),
        Case(
            name="narrow_tail",
            axes={"lead": (1021,), "tail": (3,)},
            why="a vector of 4 or 8 elements spans several rows",
        ),
        Case(
            name="wide_tail",
            axes={"lead": (3,), "tail": (9, 911)},
            why="two broadcast axes, 8199 wide: past any block of columns",
        ),
        Case(name="many_rows", axes={"lead": (1031,), "tail": (64,)}, why="a prime number of aligned rows"),
        Case(
            name="exact",
            axes={"lead": (9,), "tail": (96,)},
            distribution="integers",
            why="small integers add exactly in every dtype",
        ),
        Case(
            name="large",
            axes={"lead": (4,), "tail": (257,)},
            distribution="large",
            why="sums that a narrow intermediate would round away",
        ),
        Case(
            name="special",
            axes={"lead": (6,), "tail": (131,)},
            distribution="special",
            why="NaN and infinities of the bias reach every row, those of x only their own",
        ),
        Case(
            name="misaligned",
            axes={"lead": (13,), "tail": (160,)},
            layout="misaligned",
            why="vector accesses must not assume 16-byte addresses",
        ),
        Case(
            name="sliced",
            axes={"lead": (9,), "tail": (127,)},
            layout="sliced",
            why="rows inside a wider matrix: a row stride that is not the width",
        ),
    ),
    workloads=(
        Workload(
            name="mlp_bert_base",
            axes={"lead": (8, 128), "tail": (3072,)},
            source="BERT base: bias of the feed-forward layer, 8 sequences of 128",
            scale="laptop",
        ),
        Workload(
            name="conv2_resnet50",
            axes={"lead": (8, 56, 56), "tail": (256,)},
            source="ResNet-50: folded batch norm of conv2_x, channels last, batch 8",
            scale="laptop",
        ),
        Workload(
            name="seed_high_rank",
            axes={"lead": (1, 1024, 1024), "tail": (256,)},
            source="seed 003: [batch, 1024, 1024, 256], batch 1",
        ),
        Workload(
            name="mlp_bert_large",
            axes={"lead": (32, 512), "tail": (4096,)},
            source="BERT large: bias of the feed-forward layer, 32 sequences of 512",
        ),
        Workload(
            name="position_bias_t5_base",
            axes={"lead": (16,), "tail": (12, 512, 512)},
            source="T5 base: relative position bias on the attention scores, batch 16",
        ),
    ),
    implementations=("cuda_flat", "triton_tiles", "tilelang_tiles", "cpp_rows", "torch_eager"),
    like=(Like(function="torch.add", lower=lower, autocast=False),),
)
