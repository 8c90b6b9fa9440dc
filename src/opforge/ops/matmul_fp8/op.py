"""Product of two FP8 matrices with a scale for each row of both: y = (scale_a * a) @ (scale_b * b)^T, in bfloat16."""

from opforge.core.operator import Case, Operator, TensorSpec, Tolerance, Workload


def reference(a, b, scale_a, scale_b):
    return (a * scale_a[:, None]) @ (b * scale_b[:, None]).transpose(0, 1)


def magnitude(inputs, outputs, scalars):
    # what is added up are the scaled products
    return {"y": reference(*(inputs[name].abs() for name in ("a", "b", "scale_a", "scale_b")))}


def _axes(m, n, k):
    return {"m": m, "n": n, "k": k}


operator = Operator(
    name="matmul_fp8",
    about="product of two FP8 matrices with row- or tensor-wise scales, summed in float32, stored as bfloat16",
    source="formats: OCP 8-bit floating point specification 1.0; products per row as in Micikevicius et al., FP8 formats for deep learning, 2022",
    inputs=(
        TensorSpec(name="a", shape="m k"),
        TensorSpec(name="b", shape="n k", about="both operands have their terms side by side: tensor cores read FP8 in no other way"),
        TensorSpec(name="scale_a", shape="m", dtype="float32", about="a scale for each row; one for the whole tensor is given as its expansion, which takes no memory"),
        TensorSpec(name="scale_b", shape="n", dtype="float32", about="as scale_a"),
    ),
    outputs=(TensorSpec(name="y", shape="m n", dtype="bfloat16"),),
    dtypes=("float8_e4m3fn", "float8_e5m2"),
    reference=reference,
    flops="2 * m * n * k",
    unit="matrix",
    tolerance=Tolerance(length="k", magnitude=magnitude, about="tensor cores keep some 14 bits of a sum of FP8 products: it has to be carried on in float32"),
    cases=(
        Case(name="one_block", axes=_axes(128, 128, 128), why="whole blocks everywhere: no mask is at work"),
        Case(name="blocks", axes=_axes(144, 272, 400), why="a second and third block with little in them"),
        Case(name="odd", axes=_axes(65, 131, 133), why="no row begins at 16 bytes"),
        Case(name="one_row", axes=_axes(1, 144, 96), why="m = 1: decoding one token"),
        Case(name="one_term", axes=_axes(19, 23, 1), why="k = 1: one product, rounded once"),
        Case(name="long_k", axes=_axes(4, 16, 4096), why="14 bits of a long sum are not enough"),
        Case(name="no_terms", axes=_axes(5, 9, 0), why="k = 0: an empty sum is zero"),
        Case(name="no_rows", axes=_axes(0, 9, 16), why="an empty result"),
        Case(name="integers", axes=_axes(48, 80, 96), distribution="integers", why="every partial sum is exact in any format: an error is a wrong index"),
        Case(name="sliced", axes=_axes(40, 72, 48), layout="sliced", why="rows inside wider matrices"),
        Case(name="transposed", axes=_axes(66, 70, 50), layout="transposed", why="terms that do not lie side by side"),
        Case(name="misaligned", axes=_axes(64, 96, 32), layout="misaligned", why="sizes invite vector loads, the address forbids them"),
    ),
    workloads=(
        Workload(name="mlp_gpt2", axes=_axes(64, 3072, 768), source="GPT-2 small: first layer of the MLP, 64 tokens", scale="laptop"),
        Workload(name="attention_out_llama3_8b", axes=_axes(4096, 4096, 4096), source="Llama 3 8B: q and output projections, 4096 tokens"),
        Workload(name="mlp_up_llama3_8b", axes=_axes(4096, 14336, 4096), source="Llama 3 8B: MLP up projection, 4096 tokens"),
        Workload(name="square_8192", axes=_axes(8192, 8192, 8192), source="8192 cubed: the size vendors quote their peak at"),
        Workload(name="decode_64_llama3_70b", axes=_axes(64, 8192, 8192), source="Llama 3 70B: q and output projections, 64 sequences decoding"),
    ),
    implementations=("triton_gluon", "triton_scaled", "torch_eager"),
)
