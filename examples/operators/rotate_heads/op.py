"""Rotary positions on packed heads: each half of a head turned with the other by the angle of its token."""

from opforge.core.operator import Case, Operator, TensorSpec, Tolerance, Workload


def halves(x, cos):
    tokens, half = cos.shape
    return x.reshape(tokens, x.shape[1] // max(1, 2 * half), 2, half)


def reference(x, cos, sin):
    pairs = halves(x, cos)
    signs = pairs.new_tensor([-1.0, 1.0]).reshape(2, 1)
    turned = pairs * cos[:, None, None] + pairs.flip(2) * signs * sin[:, None, None]
    return turned.reshape(x.shape)


def magnitude(inputs, outputs, scalars):
    pairs, cos, sin = halves(inputs["x"].abs(), inputs["cos"]), inputs["cos"].abs(), inputs["sin"].abs()
    added = pairs * cos[:, None, None] + pairs.flip(2) * sin[:, None, None]
    return {"y": added.reshape(inputs["x"].shape)}


def axes(tokens, heads, half):
    return {"tokens": tokens, "heads": heads, "half": half}


operator = Operator(
    name="rotate_heads",
    about="rotary position embedding of packed heads, with angles in float32",
    source="Su et al., RoFormer, arXiv:2104.09864, 2021; halves as in Llama",
    inputs=(
        TensorSpec(name="x", shape="tokens heads*2*half", about="a head is its first half, then its second"),
        TensorSpec(name="cos", shape="tokens half", dtype="float32"),
        TensorSpec(name="sin", shape="tokens half", dtype="float32"),
    ),
    outputs=(TensorSpec(name="y", shape="tokens heads*2*half"),),
    reference=reference,
    flops="6 * tokens * heads * half",
    tolerance=Tolerance(factor=2.0, magnitude=magnitude, about="two float32 products, their sum, one rounding"),
    cases=(
        Case(name="one_pair", axes=axes(1, 1, 1), why="the smallest call"),
        Case(name="odd", axes=axes(7, 3, 5), why="no power of two anywhere"),
        Case(name="llama", axes=axes(9, 4, 64), why="heads of 128"),
        Case(name="many_heads", axes=axes(3, 33, 16), why="more heads than a block, one past a power of two"),
        Case(name="empty", axes=axes(0, 2, 8), why="no token"),
        Case(name="large", axes=axes(5, 2, 40), distribution="large", why="sums that a narrow format rounds away"),
        Case(name="misaligned", axes=axes(4, 2, 32), layout="misaligned", why="no 16-byte addresses"),
    ),
    workloads=(
        Workload(
            name="llama32_1b_prompt",
            axes=axes(1024, 32, 32),
            source="Llama 3.2 1B: queries of a prompt of 1024 tokens",
            scale="laptop",
        ),
    ),
    implementations=("triton_heads", "cpp_tokens", "torch_eager"),
)
