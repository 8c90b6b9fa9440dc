"""Product of two FP8 matrices with float32 scales for tensors, rows or blocks of both: y = (scale_a * a) @ (scale_b *
b)^T.
"""

from opforge.core.definition.rounding_errors import Errors
from opforge.core.operator import Case, Operator, Scalar, TensorSpec, Tolerance, Workload
from opforge.definitions.bounds.formulas import LEAST
from opforge.definitions.bounds.sums import finite, product_errors

BLOCK = 128


def spread(scale, rows, terms):
    """The scale of every element, rows x terms: a single row or column serves all of them, fewer than all serve 128
    each.
    """
    if 1 < scale.shape[0] < rows:
        scale = scale.repeat_interleave(BLOCK, dim=0)[:rows]
    if scale.shape[1] > 1:
        scale = scale.repeat_interleave(BLOCK, dim=1)[:, :terms]
    return scale.expand(rows, terms)


def widened(a, b, scale_a, scale_b):
    return a * spread(scale_a, *a.shape), b * spread(scale_b, *b.shape)


def reference(a, b, scale_a, scale_b, *, scaling, b_dtype, out_dtype):
    left, right = widened(a, b, scale_a, scale_b)
    return left @ right.transpose(0, 1)


def errors(inputs, outputs, scalars, dtype):
    # Of every 32 terms a tensor core keeps some 14 bits of the largest number that it adds, so after a block of 128 a
    # sum is off by 2^-13 of what such a sum comes to (as large as it is, or as its products wander), root mean square,
    # and by 2^-10.3 at worst among 262144; so are cuBLAS's (measured on an H200). Then float32 takes over, and the
    # errors of blocks are independent. What is cut off makes a product smaller, never larger: terms of one sign lose
    # 2^-16 of that each, which adds up.
    a, b, scale_a, scale_b = (finite(inputs[name]) for name in ("a", "b", "scale_a", "scale_b"))
    left, right = widened(a, b, scale_a, scale_b)
    wandering = cut = 0
    for first in range(0, left.shape[1], BLOCK):
        ours, theirs = left[:, first : first + BLOCK], right[:, first : first + BLOCK].transpose(0, 1)
        reached = (ours @ theirs).abs() + (ours.square() @ theirs.square()).sqrt()
        wandering = wandering + reached.square()
        cut = cut + (ours.sign() @ theirs.sign()) * reached
    promoted = product_errors(left, right.transpose(0, 1), cut=False)
    if scalars["scaling"] == "block":
        ours, theirs = spread(scale_a, *a.shape), spread(scale_b, *b.shape)
        for first in range(0, a.shape[1], BLOCK):
            terms = slice(first, first + BLOCK)
            promoted += in_any_order(a[:, terms], b[:, terms], ours[:, first : first + 1], theirs[:, first : first + 1])
    else:
        promoted += in_any_order(a, b, scale_a, scale_b)
    return {
        "y": promoted
        + Errors(wandering**0.5 * 2.0**-10 + abs(cut) * 2.0**-16, wandering**0.5 * 2.0**-12 + abs(cut) * 2.0**-16)
    }


def in_any_order(a, b, scale_a, scale_b):
    """Of sums and their two scales, of all rows or of each, multiplied in any order: scales far apart (2^90 and 2^-90)
    may leave the range of float32 on the way, at the upper end or at the lower, below which hardware counts as 0."""
    sums, ours, theirs = a.abs() @ b.abs().transpose(0, 1), scale_a.abs(), scale_b.abs().transpose(0, 1)
    steps = ((sums * ours, theirs), (sums * theirs, ours), (ours * theirs, sums))
    lost = sum(step * rest * (step < LEAST) for step, rest in steps)
    reached = (sums * ours).maximum(sums * theirs).maximum(ours * theirs)
    return Errors(lost, lost / 2, reached)


SCALINGS = ("tensor", "row", "block")
FORMATS = ("float8_e4m3fn", "float8_e5m2")
RESULTS = ("bfloat16", "float16", "float32")


def _axes(m, n, k):
    return {"m": m, "n": n, "k": k}


def _case(name, m, n, k, scaling, why, *, b_dtype="float8_e4m3fn", out_dtype="bfloat16", **how):
    return Case(
        name=name,
        axes=_axes(m, n, k),
        scalars={"scaling": scaling, "b_dtype": b_dtype, "out_dtype": out_dtype},
        why=why,
        **how,
    )


def _workload(name, m, n, k, scaling, source, scale="gpu"):
    return Workload(name=name, axes=_axes(m, n, k), scalars={"scaling": scaling}, source=source, scale=scale)


operator = Operator(
    name="matmul_fp8",
    about="product of two FP8 matrices with tensor-, row- or block-wise scales, summed in float32, stored as "
    "bfloat16, float16 or float32",
    source="formats: OCP 8-bit floating point specification 1.0; rows: Micikevicius et al., FP8 formats for deep "
    "learning, 2022; blocks and sums carried on every 128 "
    "terms: DeepSeek-V3 technical report, section 3.3, 2024",
    inputs=(
        TensorSpec(name="a", shape="m k"),
        TensorSpec(
            name="b",
            shape="n k",
            dtype="b_dtype",
            about="both operands have their terms side by side: tensor cores read FP8 in no other way",
        ),
        TensorSpec(
            name="scale_a",
            shape="a_rows a_blocks",
            dtype="float32",
            about="1 x 1 for the tensor, m x 1 for rows, m x ceil(k / 128) for blocks of 1 x 128",
        ),
        TensorSpec(
            name="scale_b",
            shape="b_rows b_blocks",
            dtype="float32",
            about="1 x 1, n x 1, or ceil(n / 128) x ceil(k / 128) for blocks of 128 x 128",
        ),
    ),
    outputs=(TensorSpec(name="y", shape="m n", dtype="out_dtype"),),
    scalars=(
        Scalar(
            name="scaling",
            default="row",
            choices=SCALINGS,
            about="what shares a scale: the tensor, a row, or 128 terms (of one row of a, of 128 rows of b)",
        ),
        Scalar(
            name="b_dtype",
            default="float8_e4m3fn",
            choices=FORMATS,
            about="the format of b, which need not be that of a",
        ),
        Scalar(name="out_dtype", default="bfloat16", choices=RESULTS, about="the format of y"),
    ),
    derived={
        "a_rows": "1 if scaling == 'tensor' else m",
        "a_blocks": "cdiv(k, 128) if scaling == 'block' else 1",
        "b_rows": "1 if scaling == 'tensor' else n if scaling == 'row' else cdiv(n, 128)",
        "b_blocks": "cdiv(k, 128) if scaling == 'block' else 1",
    },
    dtypes=FORMATS,
    differentiable=("scale_a", "scale_b"),
    reference=reference,
    flops="2 * m * n * k",
    unit="matrix",
    tolerance=Tolerance(
        errors=errors,
        about="tensor cores keep some 14 bits of a sum of FP8 products: after 128 terms it has to be carried on in "
        "float32",
    ),
    cases=(
        _case("one_block", 128, 128, 128, "row", "whole blocks everywhere: no mask is at work"),
        _case("one_block_tensor", 128, 128, 128, "tensor", "one scale for each operand"),
        _case("one_block_block", 128, 128, 128, "block", "one scale for each row of a and for all of b"),
        _case("blocks", 144, 272, 400, "row", "a second and third block with little in them"),
        _case("blocks_tensor", 144, 272, 400, "tensor", "the same with one scale"),
        _case(
            "blocks_block",
            144,
            272,
            400,
            "block",
            "three scales along n and four along k: any that is taken for its neighbour is an error of 100 %",
        ),
        _case(
            "blocks_block_float32", 144, 272, 400, "block", "what bfloat16 would hide of the sums", out_dtype="float32"
        ),
        _case("blocks_float16", 144, 272, 400, "row", "a result of 11 bits", out_dtype="float16"),
        _case("mixed", 80, 144, 272, "row", "b in E5M2, whatever a is", b_dtype="float8_e5m2"),
        _case(
            "mixed_block",
            80,
            144,
            272,
            "block",
            "both formats, and scales inside the sum",
            b_dtype="float8_e5m2",
            out_dtype="float16",
        ),
        _case(
            "mixed_tensor_float32",
            80,
            144,
            272,
            "tensor",
            "both formats, a float32 result",
            b_dtype="float8_e5m2",
            out_dtype="float32",
        ),
        _case("odd", 65, 131, 133, "row", "no row begins at 16 bytes"),
        _case("odd_block", 65, 131, 133, "block", "a block of 3 rows of b, and one of 5 terms"),
        _case("one_row", 1, 144, 96, "row", "m = 1: decoding one token"),
        _case("one_row_block", 1, 144, 272, "block", "m = 1: the scales of a lie in one row"),
        _case("one_column_block", 40, 1, 272, "block", "n = 1: the scales of b lie in one row"),
        _case("one_term", 19, 23, 1, "row", "k = 1: one product, rounded once"),
        _case("long_k", 4, 16, 4096, "row", "14 bits of a long sum are not enough"),
        _case("long_k_block", 4, 16, 4096, "block", "32 blocks, each with its own scales"),
        _case("no_terms", 5, 9, 0, "row", "k = 0: an empty sum is zero"),
        _case("no_terms_block", 5, 9, 0, "block", "k = 0: no scale either"),
        _case("no_rows", 0, 9, 16, "tensor", "an empty result"),
        _case(
            "integers",
            48,
            80,
            96,
            "row",
            "every partial sum is exact in any format: an error is a wrong index",
            distribution="integers",
            out_dtype="float32",
        ),
        _case("sliced", 40, 72, 48, "row", "rows inside wider matrices", layout="sliced"),
        _case("sliced_block", 40, 136, 272, "block", "scales inside wider matrices too", layout="sliced"),
        _case("transposed", 66, 70, 50, "row", "terms that do not lie side by side", layout="transposed"),
        _case(
            "transposed_block",
            66,
            140,
            150,
            "block",
            "scales stored block by block, as kernels like them",
            layout="transposed",
        ),
        _case(
            "misaligned",
            64,
            96,
            32,
            "tensor",
            "sizes invite vector loads, the address forbids them",
            layout="misaligned",
        ),
    ),
    workloads=(
        _workload("mlp_gpt2", 64, 3072, 768, "row", "GPT-2 small: first layer of the MLP, 64 tokens", "laptop"),
        _workload(
            "expert_down_16_deepseek_v3",
            16,
            7168,
            2048,
            "block",
            "DeepSeek-V3: down projection of one expert that got 16 tokens",
            "laptop",
        ),
        _workload(
            "attention_out_llama3_8b", 4096, 4096, 4096, "row", "Llama 3 8B: q and output projections, 4096 tokens"
        ),
        _workload("mlp_up_llama3_8b", 4096, 14336, 4096, "row", "Llama 3 8B: MLP up projection, 4096 tokens"),
        _workload("square_8192", 8192, 8192, 8192, "row", "8192 cubed: the size vendors quote their peak at"),
        _workload("square_8192_tensor", 8192, 8192, 8192, "tensor", "8192 cubed with one scale for each operand"),
        _workload("square_4096_tensor", 4096, 4096, 4096, "tensor", "4096 cubed with one scale for each operand"),
        _workload(
            "square_4096_block",
            4096,
            4096,
            4096,
            "block",
            "4096 cubed in blocks, to be held against the same size with one scale",
        ),
        _workload(
            "experts_up_deepseek_v3",
            4096,
            4096,
            7168,
            "block",
            "DeepSeek-V3: gate and up projections of an expert (hidden 7168, 2 x 2048), 4096 tokens",
        ),
        _workload(
            "experts_down_deepseek_v3",
            4096,
            7168,
            2048,
            "block",
            "DeepSeek-V3: down projection of an expert, 4096 tokens",
        ),
        _workload(
            "attention_out_deepseek_v3",
            4096,
            7168,
            16384,
            "block",
            "DeepSeek-V3: output projection of 128 heads of 128, 4096 tokens",
        ),
        _workload(
            "query_up_deepseek_v3",
            4096,
            24576,
            1536,
            "block",
            "DeepSeek-V3: queries of 128 heads of 192 from 1536 latent numbers, 4096 tokens",
        ),
        _workload(
            "decode_64_llama3_70b",
            64,
            8192,
            8192,
            "row",
            "Llama 3 70B: q and output projections, 64 sequences decoding",
        ),
        _workload(
            "decode_128_deepseek_v3",
            128,
            7168,
            16384,
            "block",
            "DeepSeek-V3: output projection, 128 sequences decoding",
        ),
    ),
    implementations=(
        "triton_gluon",
        "cuda_wgmma",
        "cuda_stream",
        "triton_pipelined",
        "tilelang_tiled",
        "triton_scaled",
        "cpp_packed",
        "torch_eager",
    ),
)
