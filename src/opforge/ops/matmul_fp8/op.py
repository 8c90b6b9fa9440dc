"""Product of two FP8 matrices with scales: y = (scale_a * a) @ (scale_b * b)^T, in bfloat16."""

from opforge.core.operator import Case, Constraint, Operator, TensorSpec, Tolerance, Workload

BLOCK = 128


def spread(scale, rows, terms):
    """The scale of every element of a rows x terms matrix: one for all, one a row, or one for each 128 rows or terms."""
    per_row = scale if scale.shape[0] in (1, rows) else scale.repeat_interleave(BLOCK, dim=0)[:rows]
    return (per_row if scale.shape[1] in (1, terms) else per_row.repeat_interleave(BLOCK, dim=1)[:, :terms]).expand(rows, terms)


def reference(a, b, scale_a, scale_b):
    return (a * spread(scale_a, *a.shape)) @ (b * spread(scale_b, *b.shape)).transpose(0, 1)


def magnitude(inputs, outputs, scalars):
    # what is added up are the scaled products
    a, b, scale_a, scale_b = (inputs[name].abs() for name in ("a", "b", "scale_a", "scale_b"))
    return {"y": reference(a, b, scale_a, scale_b)}


def _axes(m, n, k, scales):
    sizes = {"tensor": (1, 1, 1), "row": (m, n, 1), "block": (m, -(-n // BLOCK), -(-k // BLOCK))}[scales]
    return {"m": m, "n": n, "k": k, **dict(zip(("sm", "sn", "sk"), sizes, strict=True))}


SCALES = ("tensor", "row", "block")

operator = Operator(
    name="matmul_fp8",
    about="product of two FP8 matrices with tensor-, row- or block-wise scales, summed in float32, stored as bfloat16",
    source="formats: OCP 8-bit floating point specification 1.0; scales of 1 x 128 and 128 x 128: DeepSeek-V3 technical report, section 3.3.2, 2024",
    inputs=(
        TensorSpec(name="a", shape="m k"),
        TensorSpec(name="b", shape="n k", about="both operands have their terms side by side: tensor cores read FP8 in no other way"),
        TensorSpec(name="scale_a", shape="sm sk", dtype="float32", about="1 x 1, m x 1, or m x cdiv(k, 128)"),
        TensorSpec(name="scale_b", shape="sn sk", dtype="float32", about="1 x 1, n x 1, or cdiv(n, 128) x cdiv(k, 128)"),
    ),
    outputs=(TensorSpec(name="y", shape="m n", dtype="bfloat16"),),
    dtypes=("float8_e4m3fn", "float8_e5m2"),
    reference=reference,
    flops="2 * m * n * k",
    unit="matrix",
    constraints=(
        Constraint(
            name="scales_fit",
            expression="(sm == 1 and sn == 1 and sk == 1) or (sm == m and sn == n and sk == 1) or (sm == m and sn == cdiv(n, 128) and sk == cdiv(k, 128))",
            about="scales are for the whole tensor, for each row of a and of b, or for each 1 x 128 of a and 128 x 128 of b",
        ),
    ),
    tolerance=Tolerance(length="k", magnitude=magnitude, about="tensor cores keep some 14 bits of a sum of FP8 products: it has to be carried on in float32"),
    cases=(
        *(Case(name=f"one_block_{scales}", axes=_axes(128, 128, 128, scales), why=f"{scales}-wise scales, whole blocks") for scales in SCALES),
        *(Case(name=f"blocks_{scales}", axes=_axes(144, 272, 400, scales), why=f"{scales}-wise scales, a second and third block with little in them") for scales in SCALES),
        *(Case(name=f"odd_{scales}", axes=_axes(65, 131, 133, scales), why=f"{scales}-wise scales, no row begins at 16 bytes") for scales in SCALES),
        Case(name="one_row", axes=_axes(1, 144, 96, "row"), why="m = 1: decoding one token"),
        Case(name="one_term", axes=_axes(19, 23, 1, "tensor"), why="k = 1: one product, rounded once"),
        Case(name="long_k", axes=_axes(4, 16, 4096, "tensor"), why="14 bits of a long sum are not enough"),
        Case(name="no_terms", axes={"m": 5, "n": 9, "k": 0, "sm": 1, "sn": 1, "sk": 1}, why="k = 0: an empty sum is zero"),
        Case(name="integers", axes=_axes(48, 80, 96, "tensor"), distribution="integers", why="every partial sum is exact: any error is a wrong index or format"),
        Case(name="sliced", axes=_axes(40, 72, 48, "row"), layout="sliced", why="rows inside wider matrices"),
        Case(name="transposed", axes=_axes(66, 70, 50, "row"), layout="transposed", why="terms that do not lie side by side"),
        Case(name="misaligned", axes=_axes(64, 96, 32, "tensor"), layout="misaligned", why="sizes invite vector loads, the address forbids them"),
    ),
    workloads=(
        Workload(name="mlp_gpt2", axes=_axes(64, 3072, 768, "tensor"), source="GPT-2 small: first layer of the MLP, 64 tokens", scale="laptop"),
        Workload(name="square_4096", axes=_axes(4096, 4096, 4096, "tensor"), source="4096 cubed, one scale a tensor"),
        Workload(name="square_8192", axes=_axes(8192, 8192, 8192, "tensor"), source="8192 cubed, one scale a tensor"),
        Workload(name="mlp_up_llama3_8b_row", axes=_axes(4096, 14336, 4096, "row"), source="Llama 3 8B: MLP up projection, 4096 tokens, a scale for each token and channel"),
        Workload(name="attention_out_block", axes=_axes(4096, 4096, 4096, "block"), source="4096 cubed, scales of 1 x 128 and 128 x 128 as DeepSeek-V3 trains"),
        Workload(name="expert_deepseek_v3_block", axes=_axes(4096, 4096, 7168, "block"), source="DeepSeek-V3: an expert's gate and up projections, 4096 tokens"),
    ),
    implementations=("triton_scaled", "torch_eager"),
)
