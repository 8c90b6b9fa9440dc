"""Matrix product: c[i, j] = sum over l of a[i, l] * b[l, j]."""

from opforge.core.definition.likeness import Like
from opforge.core.operator import Case, Law, Operator, TensorSpec, Tolerance, Workload
from opforge.definitions.precision import COMPUTE_DTYPE, FACTORS_HAVE_FLOAT32, PRECISION, lost_in_factors, matrix_errors
from opforge.definitions.torch_calls import product


def reference(a, b, *, precision):
    return a @ b


def errors(inputs, outputs, scalars, dtype):
    return {"c": matrix_errors(inputs["a"], inputs["b"], scalars["precision"], dtype)}


def _sums_agree(name, got, expected, room):
    # asked this way round, NaN fails
    excess = (got - expected).abs() - room
    return (
        None
        if bool((excess <= 0).all())
        else f"{name} differs from what the operands give by {(got - expected).abs().max().item():.3g}"
    )


def _room(inputs, outputs, scalars):
    # each element of c was accumulated in float32 and rounded once, at worst to bfloat16
    a, b, length = inputs["a"], inputs["b"], max(1, inputs["a"].shape[1])
    return (
        outputs["c"].abs() * 2.0**-8
        + 6 * 2.0**-23 * length**0.5 * (a.abs() @ b.abs())
        + lost_in_factors(a, b, scalars["precision"])
        + 2.0**-24
    )


def row_sums(inputs, outputs, scalars):
    room = _room(inputs, outputs, scalars).sum(dim=1)
    return _sums_agree("a row sum of c", outputs["c"].sum(dim=1), inputs["a"] @ inputs["b"].sum(dim=1), room)


def column_sums(inputs, outputs, scalars):
    room = _room(inputs, outputs, scalars).sum(dim=0)
    return _sums_agree("a column sum of c", outputs["c"].sum(dim=0), inputs["a"].sum(dim=0) @ inputs["b"], room)


def _axes(m, n, k):
    return {"m": m, "n": n, "k": k}


TF32 = {"precision": "tf32"}


def lower(input, other, *, out=None):
    """As torch.matmul: two matrices, or rows of any number of axes and one matrix."""
    return "matmul makes its result" if out is not None else product(input, other)


def lower_linear(input, weight, bias=None):
    """As torch.nn.functional.linear without a bias."""
    if bias is not None:
        return "there is a bias"
    return product(input, weight.t() if getattr(weight, "ndim", 0) == 2 else weight)


operator = Operator(
    name="matmul",
    about="matrix product of two matrices, accumulated in float32",
    source="blocking: Goto and van de Geijn, Anatomy of high-performance matrix multiplication, ACM TOMS 34(3), 2008",
    inputs=(TensorSpec(name="a", shape="m k"), TensorSpec(name="b", shape="k n")),
    outputs=(TensorSpec(name="c", shape="m n"),),
    scalars=(PRECISION,),
    constraints=(FACTORS_HAVE_FLOAT32,),
    reference=reference,
    flops="2 * m * n * k",
    unit="matrix",
    compute_dtype=COMPUTE_DTYPE,
    tolerance=Tolerance(
        errors=errors,
    ),
    laws=(
        Law(name="row_sums", about="c @ 1 = a @ (b @ 1): Freivalds' check with a vector of ones", holds=row_sums),
        Law(name="column_sums", about="1 @ c = (1 @ a) @ b", holds=column_sums),
    ),
    cases=(
        Case(name="one_block", axes=_axes(64, 64, 64), why="whole blocks everywhere: no mask is at work"),
        Case(
            name="integers",
            axes=_axes(48, 80, 96),
            distribution="integers",
            why="every partial sum is exact in float32: any error at all is a wrong index or format",
        ),
        Case(
            name="odd",
            axes=_axes(65, 63, 33),
            why="one past and one short of a block, rows that are not aligned to 16 bytes",
        ),
        Case(name="prime", axes=_axes(37, 101, 53), why="no block divides any axis"),
        Case(
            name="past_a_block",
            axes=_axes(129, 136, 72),
            why="a second block of rows and columns with almost nothing in it, and a tail in k",
        ),
        Case(name="vector_matrix", axes=_axes(1, 130, 77), why="m = 1: decoding one token"),
        Case(
            name="matrix_vector",
            axes=_axes(67, 1, 90),
            why="n = 1: a single column, so both strides of b look contiguous",
        ),
        Case(
            name="long_vector_matrix",
            axes=_axes(1, 72, 2100),
            why="m = 1 and a long k: parts of k, rounds of loads that are under way together, and what is left of both",
        ),
        Case(
            name="matrix_long_vector",
            axes=_axes(11, 1, 4104),
            why="n = 1 and a long k, likewise, with terms side by side",
        ),
        Case(name="outer_product", axes=_axes(19, 23, 1), why="k = 1: one product, rounded once"),
        Case(name="one_element", axes=_axes(1, 1, 1), why="the smallest call"),
        Case(name="no_terms", axes=_axes(5, 9, 0), why="k = 0: an empty sum is zero, and outputs start as NaN"),
        Case(name="no_rows", axes=_axes(0, 9, 7), why="an empty result: nothing may be launched"),
        Case(
            name="long_k",
            axes=_axes(4, 4, 8192),
            why="an accumulator in float16 or bfloat16, or TF32 products, drift away with k",
        ),
        Case(
            name="few_digits",
            axes=_axes(33, 40, 24),
            distribution="uniform",
            why="k is short, so the bound is tight: float32 products done in TF32 fall out of it",
        ),
        Case(
            name="offset",
            axes=_axes(34, 35, 300),
            distribution="offset",
            why="every product is positive: a bfloat16 accumulator stops growing, float16 results overflow to infinity",
        ),
        Case(
            name="tiny",
            axes=_axes(32, 48, 40),
            distribution="tiny",
            why="float16 subnormals in and out: flushed to zero they are wrong",
        ),
        Case(
            name="special",
            axes=_axes(9, 20, 28),
            distribution="special",
            why="NaN and infinity stay in their own rows and columns; at k = 28 all of b's lie in one column",
        ),
        Case(
            name="transposed", axes=_axes(66, 70, 50), layout="transposed", why="both operands stored column by column"
        ),
        Case(
            name="sliced",
            axes=_axes(40, 72, 48),
            layout="sliced",
            why="rows inside a wider matrix, starting one element in",
        ),
        Case(
            name="strided", axes=_axes(21, 30, 25), layout="strided", why="every second element: no axis has stride 1"
        ),
        Case(
            name="misaligned",
            axes=_axes(64, 72, 32),
            layout="misaligned",
            why="sizes invite vector loads, the address forbids them",
        ),
        *(
            Case(
                name=f"tf32_{name}",
                axes=_axes(*sizes),
                distribution=distribution,
                layout=layout,
                dtype="float32",
                scalars=TF32,
                why=why,
            )
            for name, sizes, distribution, layout, why in (
                (
                    "one_block",
                    (128, 136, 96),
                    "normal",
                    "contiguous",
                    "more than one block, and bfloat16 products would fall out of the bound",
                ),
                (
                    "integers",
                    (48, 80, 96),
                    "integers",
                    "contiguous",
                    "integers below 2048 are exact in TF32: any error is a wrong index",
                ),
                (
                    "odd",
                    (65, 63, 33),
                    "normal",
                    "contiguous",
                    "one past and one short of a block, and k ends within an instruction's eight terms",
                ),
                ("few_rows", (3, 130, 2100), "normal", "contiguous", "few rows and a long k: other kernels take these"),
                ("matrix_vector", (67, 1, 90), "uniform", "contiguous", "a single column"),
                ("no_terms", (5, 9, 0), "normal", "contiguous", "k = 0: an empty sum is zero"),
                (
                    "long_k",
                    (24, 40, 8192),
                    "normal",
                    "contiguous",
                    "sums that are kept in less than float32 drift away with k",
                ),
                (
                    "positive",
                    (34, 40, 300),
                    "skewed",
                    "contiguous",
                    "every product is positive: what cutting off loses adds up",
                ),
                (
                    "special",
                    (9, 20, 28),
                    "special",
                    "contiguous",
                    "NaN and infinity stay what they are when bits are cut off",
                ),
                (
                    "transposed",
                    (68, 72, 52),
                    "normal",
                    "transposed",
                    "both operands stored column by column: terms of a are not neighbours, those of b are",
                ),
                ("sliced", (40, 72, 48), "normal", "sliced", "rows inside a wider matrix, starting one element in"),
                (
                    "misaligned",
                    (64, 72, 32),
                    "normal",
                    "misaligned",
                    "sizes invite vector loads, the address forbids them",
                ),
            )
        ),
    ),
    workloads=(
        Workload(
            name="square_256",
            axes=_axes(256, 256, 256),
            source="256 x 256: fits in the second-level cache of a CPU core",
            scale="laptop",
        ),
        Workload(
            name="projection_gpt2",
            axes=_axes(512, 768, 768),
            source="GPT-2 small: attention output projection, 512 tokens",
            scale="laptop",
        ),
        Workload(
            name="mlp_gpt2",
            axes=_axes(256, 3072, 768),
            source="GPT-2 small: first layer of the MLP, 256 tokens",
            scale="laptop",
        ),
        Workload(
            name="square_1024",
            axes=_axes(1024, 1024, 1024),
            source="1024 x 1024: the size most CPU comparisons state",
            scale="laptop",
        ),
        Workload(
            name="decode_gpt2",
            axes=_axes(1, 3072, 768),
            source="GPT-2 small: first layer of the MLP, one token",
            scale="laptop",
        ),
        Workload(
            name="projection_gpt2_tf32",
            axes=_axes(512, 768, 768),
            scalars=TF32,
            source="GPT-2 small: attention output projection, 512 tokens, in TF32",
            scale="laptop",
        ),
        Workload(
            name="attention_out_llama3_8b",
            axes=_axes(4096, 4096, 4096),
            source="Llama 3 8B: q and output projections, 4096 tokens",
        ),
        Workload(
            name="mlp_up_llama3_8b",
            axes=_axes(512, 14336, 4096),
            source="Llama 3 8B: MLP up and gate projections, 512 tokens",
        ),
        Workload(
            name="long_context_llama3_8b",
            axes=_axes(16384, 4096, 4096),
            source="Llama 3 8B: q and output projections, 16384 tokens",
        ),
        Workload(
            name="square_8192", axes=_axes(8192, 8192, 8192), source="8192 cubed: the size vendors quote their peak at"
        ),
        Workload(
            name="attention_out_llama3_8b_tf32",
            axes=_axes(4096, 4096, 4096),
            scalars=TF32,
            source="Llama 3 8B: q and output projections, 4096 tokens, in TF32",
        ),
        Workload(
            name="square_8192_tf32",
            axes=_axes(8192, 8192, 8192),
            scalars=TF32,
            source="8192 cubed: the size vendors quote their peak at",
        ),
        Workload(
            name="decode_1_llama3_70b", axes=_axes(1, 28672, 8192), source="Llama 3 70B: MLP up projection, one token"
        ),
        Workload(
            name="decode_1_out_llama3_70b",
            axes=_axes(1, 8192, 8192),
            source="Llama 3 70B: q and output projections, one token",
        ),
        Workload(
            name="decode_64_llama3_70b",
            axes=_axes(64, 8192, 8192),
            source="Llama 3 70B: q and output projections, 64 sequences decoding",
        ),
        Workload(
            name="decode_16_llama3_70b",
            axes=_axes(16, 8192, 8192),
            source="Llama 3 70B: q and output projections, 16 sequences decoding",
        ),
        Workload(
            name="decode_128_llama3_70b",
            axes=_axes(128, 8192, 28672),
            source="Llama 3 70B: MLP down projection, 128 sequences decoding",
        ),
        Workload(
            name="decode_16_llama3_8b",
            axes=_axes(16, 4096, 4096),
            source="Llama 3 8B: q and output projections, 16 sequences decoding",
        ),
        Workload(
            name="decode_64_up_llama3_8b",
            axes=_axes(64, 14336, 4096),
            source="Llama 3 8B: MLP up and gate projections, 64 sequences decoding",
        ),
        Workload(
            name="square_1024_gpu",
            axes=_axes(1024, 1024, 1024),
            source="1024 cubed: a GPU has more multiprocessors than it has large tiles",
        ),
        Workload(
            name="square_2048", axes=_axes(2048, 2048, 2048), source="2048 cubed: one tile for each multiprocessor"
        ),
        Workload(
            name="short_terms_8192",
            axes=_axes(8192, 8192, 1024),
            source="8192 x 8192 in 1024 terms: tiles end soon, so their stores count",
        ),
    ),
    implementations=(
        "cuda_wgmma",
        "cuda_tf32",
        "cuda_split",
        "triton_gluon",
        "triton_tf32",
        "triton_bf16x6",
        "triton_pipelined",
        "triton_splitk",
        "triton_gemv",
        "cuda_gemv",
        "cuda_stream",
        "triton_tiled",
        "tilelang_persistent",
        "tilelang_tiled",
        "cuda_mma",
        "cuda_tiled",
        "cuda_shared",
        "cuda_naive",
        "triton_naive",
        "cpp_blocked",
        "torch_eager",
        "torch_definition",
    ),
    like=(
        Like(function="torch.matmul", lower=lower),
        Like(function="torch.nn.functional.linear", lower=lower_linear),
    ),
    used=("language models",),
)
