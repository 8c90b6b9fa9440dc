"""A matrix in FP8 with float32 scales for the tensor, its rows or its blocks: x is about scale * q."""

from opforge.core.operator import Case, Law, Operator, Scalar, TensorSpec, Tolerance, Workload

BLOCK = 128
LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
SCALINGS = ("tensor", "row", "block", "tile")
LEAST = 2.0**-126


def sides(scaling, m, k):
    """Rows and columns that share a scale."""
    return {"tensor": (max(m, 1), max(k, 1)), "row": (1, max(k, 1)), "block": (1, BLOCK), "tile": (BLOCK, BLOCK)}[
        scaling
    ]


def spread(scale, shape, scaling):
    rows, cols = sides(scaling, *shape)
    return scale.repeat_interleave(rows, dim=0)[: shape[0]].repeat_interleave(cols, dim=1)[:, : shape[1]]


def reference(x, *, scaling, q_dtype):
    m, k = x.shape
    rows, cols = sides(scaling, m, k)
    finite = x.abs().nan_to_num(nan=0.0, posinf=0.0)
    # an empty tensor has one scale all the same, and so has an empty row
    down, across = 1 if scaling == "tensor" else -(-m // rows), 1 if scaling in ("tensor", "row") else -(-k // cols)
    padded = finite.new_zeros(down * rows, across * cols)
    padded[:m, :k] = finite
    largest = padded.reshape(down, rows, across, cols).amax(dim=(1, 3))
    scale = (largest / LARGEST[q_dtype]).clamp(min=LEAST)
    # what is not finite has no place in a scale: it becomes NaN, alone
    kept = x.masked_fill(x.isinf(), float("nan"))
    return kept / spread(scale, x.shape, scaling), scale


def within_the_format(inputs, outputs, scalars):
    beyond = (outputs["q"].abs() > LARGEST[scalars["q_dtype"]]).sum().item()
    return None if not beyond else f"{beyond} elements of q are larger than the format's largest value"


def gives_x_back(inputs, outputs, scalars):
    # half an ulp: 2^-4 of an E4M3 number, 2^-3 of an E5M2 number; half a step of 2^-9 or 2^-16 near zero
    relative, least = (2.0**-4, 2.0**-10) if scalars["q_dtype"] == "float8_e4m3fn" else (2.0**-3, 2.0**-17)
    scales = spread(outputs["scale"], inputs["x"].shape, scalars["scaling"])
    lost = (outputs["q"] * scales - inputs["x"]).abs()
    room = inputs["x"].abs() * relative + scales * least
    excess = (lost - room * (1 + 2.0**-20)).max().item()
    return None if excess <= 0 else f"scale * q differs from x by {excess:.3g} more than one rounding explains"


def _case(name, m, k, scaling, why, *, q_dtype="float8_e4m3fn", **how):
    return Case(name=name, axes={"m": m, "k": k}, scalars={"scaling": scaling, "q_dtype": q_dtype}, why=why, **how)


def _workload(name, m, k, scaling, source, scale="gpu"):
    return Workload(name=name, axes={"m": m, "k": k}, scalars={"scaling": scaling}, source=source, scale=scale)


operator = Operator(
    name="quantize_fp8",
    about="a matrix rounded to FP8, with the scales that bring the largest magnitude of the tensor, a row or a "
    "block to the format's largest value",
    source="formats: OCP 8-bit floating point specification 1.0; blocks of 1 x 128 and tiles of 128 x 128: "
    "DeepSeek-V3 technical report, section 3.3, 2024",
    inputs=(TensorSpec(name="x", shape="m k"),),
    outputs=(
        TensorSpec(
            name="q", shape="m k", dtype="q_dtype", about="x / scale, to nearest even; what is not finite becomes NaN"
        ),
        TensorSpec(
            name="scale",
            shape="s_rows s_blocks",
            dtype="float32",
            about="largest finite magnitude / 448 (or 57344), at least 2^-126: a row of zeros divides by it too",
        ),
    ),
    scalars=(
        Scalar(
            name="scaling",
            default="row",
            choices=SCALINGS,
            about="what shares a scale: the tensor, a row, 128 terms of a row (activations), 128 x 128 (weights)",
        ),
        Scalar(name="q_dtype", default="float8_e4m3fn", choices=tuple(LARGEST), about="the format of q"),
    ),
    derived={
        "s_rows": "1 if scaling == 'tensor' else cdiv(m, 128) if scaling == 'tile' else m",
        "s_blocks": "cdiv(k, 128) if scaling in ('block', 'tile') else 1",
    },
    reference=reference,
    flops="2 * m * k",
    tolerance=Tolerance(
        factor=4.0, about="one division for the scale and one for each element: q may fall on the other side of a tie"
    ),
    laws=(
        Law(name="within_the_format", about="|q| <= 448 (57344)", holds=within_the_format),
        Law(name="gives_x_back", about="scale * q differs from x by one rounding of the format", holds=gives_x_back),
    ),
    differentiable=(),
    cases=(
        _case("row", 9, 160, "row", "a scale for each row"),
        _case("tensor", 40, 160, "tensor", "one scale, found by many programs"),
        _case("block", 9, 400, "block", "three whole blocks and a short one"),
        _case("tile", 140, 272, "tile", "whole tiles, and edges of 12 rows and 16 columns"),
        *(
            _case(f"e5m2_{scaling}", 130, 132, scaling, "the other format", q_dtype="float8_e5m2")
            for scaling in SCALINGS
        ),
        _case("odd_row", 7, 1021, "row", "a prime width: nothing is aligned"),
        _case("odd_tile", 129, 129, "tile", "tiles of one row and one column"),
        _case("wide_row", 3, 9001, "row", "more columns than a program keeps"),
        _case("one_element", 1, 1, "tensor", "the smallest call"),
        _case("one_column", 140, 1, "block", "blocks of one element: each becomes the largest value"),
        _case("sparse", 20, 96, "row", "zeros stay zero", distribution="sparse"),
        _case(
            "special_row",
            9,
            67,
            "row",
            "NaN and infinities become NaN, and their row keeps the scale of its finite part",
            distribution="special",
        ),
        _case("special_block", 5, 260, "block", "the same for blocks", distribution="special"),
        _case("special_tile", 140, 60, "tile", "and for tiles", distribution="special"),
        _case("special_tensor", 12, 90, "tensor", "and for the tensor", distribution="special"),
        _case("tiny", 12, 200, "block", "float16 subnormals in", distribution="tiny"),
        _case("large", 12, 200, "tensor", "beyond 448: the scale brings them back", distribution="large"),
        _case(
            "skewed",
            12,
            200,
            "row",
            "one element far beyond the others: they fall among the format's subnormals",
            distribution="skewed",
        ),
        _case("integers", 12, 200, "row", "many ties", distribution="integers"),
        _case("no_rows", 0, 16, "row", "an empty result"),
        _case("transposed", 33, 65, "row", "strides that are not row-major", layout="transposed"),
        _case("sliced", 9, 256, "block", "rows inside a wider matrix", layout="sliced"),
        _case("misaligned", 6, 256, "tile", "16-byte loads would fault", layout="misaligned"),
    ),
    workloads=(
        _workload(
            "activations_gpt2",
            1024,
            3072,
            "row",
            "GPT-2 small: what the second layer of the MLP reads, 1024 tokens",
            "laptop",
        ),
        _workload("activations_gpt2_block", 1024, 3072, "block", "the same in blocks", "laptop"),
        _workload("activations_deepseek_v3", 4096, 7168, "block", "DeepSeek-V3: hidden size 7168, 4096 tokens"),
        _workload("expert_deepseek_v3", 4096, 7168, "tile", "DeepSeek-V3: gate and up projections of one expert"),
        _workload(
            "activations_llama3_8b", 8192, 14336, "row", "Llama 3 8B: what the MLP's down projection reads, 8192 tokens"
        ),
        _workload("weights_llama3_8b", 14336, 4096, "tensor", "Llama 3 8B: up projection of the MLP"),
    ),
    implementations=("cuda_regions", "triton_regions", "cpp_bands", "torch_eager", "torch_definition"),
)
