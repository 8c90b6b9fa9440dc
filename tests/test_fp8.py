"""FP8: the formats, axes and dtypes that follow from parameters, and products whose scales lie in tensors, rows or
blocks.
"""

import dataclasses
import json
import random
import shutil
import subprocess
import sys

import pytest

from opforge.backends import native
from opforge.backends.cpp import FLAGS
from opforge.backends.module_loading import installed
from opforge.core.definition.implementation import Accepted, Rejected
from opforge.core.definition.operator import Case, Operator, Scalar, TensorSpec
from opforge.core.language.errors import UsageError
from opforge.inspect import inspect_implementation
from opforge.registry import load
from opforge.verify.judging.elements import compare
from opforge.verify.oracle.expectation import consult

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None or not installed("tvm_ffi"), reason="needs g++ and Apache TVM-FFI"
)
needs_triton = pytest.mark.skipif(not installed("triton"), reason="needs Triton: pip install triton==3.6.0")
needs_tilelang = pytest.mark.skipif(
    not installed("tilelang") or shutil.which("nvcc") is None, reason="needs TileLang and nvcc"
)
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc to compile for a GPU")
FORMATS = ("float8_e4m3fn", "float8_e5m2")


def operator(**changes):
    """y [m, n] from x [m, n] and a scale for each block of 4 columns, in the dtype that a parameter names."""
    fields = {
        "name": "blocks",
        "about": "",
        "inputs": (TensorSpec(name="x", shape="m n"), TensorSpec(name="scale", shape="m blocks", dtype="float32")),
        "outputs": (TensorSpec(name="y", shape="m n", dtype="kind"),),
        "scalars": (
            Scalar(name="kind", default="bfloat16", choices=("bfloat16", "float32")),
            Scalar(name="each", default=4),
        ),
        "derived": {"blocks": "cdiv(n, each)"},
        "reference": lambda x, scale, kind, each: x,
        "flops": "m * n",
    }
    return Operator(**{**fields, **changes})


def test_cases_need_not_give_what_follows():
    """A case that states a derived axis by hand would have to be corrected with every change of the expression."""
    made = operator(
        cases=(
            Case(name="c", axes={"m": 2, "n": 9}, why=""),
            Case(name="d", axes={"m": 2, "n": 9}, scalars={"each": 3}, why=""),
        )
    )
    assert [case.axes["blocks"] for case in made.cases] == [3, 3]
    assert made.completed({"m": 1, "n": 9}, made.scalar_values({"each": 2}))["blocks"] == 5
    assert made.free_axes == ("m", "n")


def test_a_scale_of_another_shape_is_refused_in_words():
    """Kernels index scales by what follows from k: a shorter one would be read past its end."""
    made = operator()
    axes = made.bind({"x": (2, 9), "scale": (2, 4)})
    violated = made.violated(axes, "float32", made.scalar_values({}))
    assert violated is not None
    assert violated.expression == "blocks == (cdiv(n, each))"
    assert made.violated({**axes, "blocks": 3}, "float32", made.scalar_values({})) is None


def test_the_dtype_of_an_output_may_be_a_parameter():
    """Bytes written follow it, and a parameter whose choices are no dtypes is refused when the operator is made."""
    made = operator()
    axes = {"m": 8, "n": 4, "blocks": 1}
    assert made.cost(axes, "float32").bytes_written == 64
    assert made.cost(axes, "float32", {"kind": "float32"}).bytes_written == 128
    with pytest.raises(UsageError, match="unknown dtype 'each'"):
        operator(outputs=(TensorSpec(name="y", shape="m n", dtype="each"),))


def test_hidden_cases_keep_what_follows():
    """Drawn one by one, k and its number of blocks would almost never fit together, and blocks would go untested."""
    from opforge.verify.cases.hidden import hidden_cases

    found = load().operator("matmul_fp8")
    only_blocks = dataclasses.replace(
        found, cases=tuple(case for case in found.cases if case.scalars["scaling"] == "block")
    )
    drawn = [
        case
        for seed in range(4)
        for case in hidden_cases(
            only_blocks, "float8_e4m3fn", count=24, most_elements=1 << 13, source=random.Random(seed)
        )
    ]
    assert len(drawn) > 48
    for case in drawn:
        assert case.axes["a_blocks"] == -(-case.axes["k"] // 128)
    assert max(case.axes["a_blocks"] for case in drawn) > 1


def filled(made, case, dtype, seed):
    """The inputs of a case, by name."""
    from opforge.runner.worker.inputs import allocate, fill

    arena = allocate(made, case, dtype)
    fill(arena, made, case, seed)
    values = {name: tensor.clone() for name, tensor in arena.tensors("input").items()}
    arena.close()
    return values


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("domain", ["nonzero", "positive"])
def test_inputs_keep_to_their_declared_domain_whatever_the_distribution(domain, dtype):
    """A verdict on a division by 0 that no caller makes is a false one. What a dtype rounds to 0 is a 0 too; NaN and
    infinities stay.
    """
    import torch

    from opforge.runner.worker.inputs import DISTRIBUTIONS

    case = Case(name="c", axes={"m": 9, "n": 40, "blocks": 10}, why="")
    zeros = 0
    for distribution in DISTRIBUTIONS:
        case = dataclasses.replace(case, distribution=distribution)
        free = operator(inputs=(TensorSpec(name="x", shape="m n"), TensorSpec(name="scale", shape="m blocks")))
        kept = dataclasses.replace(free, inputs=(free.inputs[0], dataclasses.replace(free.inputs[1], domain=domain)))
        before, after = filled(free, case, dtype, 6), filled(kept, case, dtype, 6)
        assert torch.equal(before["x"].nan_to_num(7.0), after["x"].nan_to_num(7.0))
        old, new = before["scale"], after["scale"]
        assert not (new == 0).any() and torch.equal(new.isnan(), old.isnan()) and torch.equal(new.isinf(), old.isinf())
        if domain == "positive":
            assert not (new < 0).any()
            old = old.abs()
        # every other value is the one that the same seed gives without a domain
        assert torch.equal(torch.where(old == 0, 1, old).nan_to_num(7.0), new.nan_to_num(7.0))
        zeros += int((old == 0).sum())
    assert zeros > 20


def test_a_domain_that_means_nothing_is_refused():
    """A misspelt domain would be no domain; one of an output or of whole numbers would not be kept to."""
    with pytest.raises(UsageError, match=r"unknown domain 'non-zero'\. Known: any, nonzero, positive"):
        operator(
            inputs=(TensorSpec(name="x", shape="m n", domain="non-zero"), TensorSpec(name="scale", shape="m blocks"))
        )
    with pytest.raises(UsageError, match="a law says what outputs keep to"):
        operator(outputs=(TensorSpec(name="y", shape="m n", domain="positive"),))
    with pytest.raises(UsageError, match="only inputs without `below` do"):
        operator(
            inputs=(
                TensorSpec(name="x", shape="m n"),
                TensorSpec(name="scale", shape="m blocks", dtype="int64", below="n", domain="nonzero"),
            )
        )


def test_a_domain_is_told_by_show():
    """A caller must be able to read what may be given."""
    command = [sys.executable, "-m", "opforge", "show", "linear_fp8"]
    assert (
        "scale[1] float32, never 0  of the whole result"
        in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    )
    told = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout)
    assert [spec["domain"] for spec in told["inputs"]] == ["any", "any", "any", "nonzero"]


@pytest.mark.campaign
@needs_compiler
def test_no_scale_is_zero_where_a_hidden_case_drew_one():
    """Whole numbers drew a scale of 0: where gelu underflows float32 has 0 / 0 and float64 a tiny number over 0, and a
    right kernel failed.
    """
    from opforge.core.evidence.verdict import Pass
    from opforge.runner import Isolated
    from opforge.verify import CaseCache, verify
    from opforge.verify.cases.hidden import EXACT

    registry, host = load(), Isolated()
    drawn = Case(
        name="c",
        axes={"rows": (64,), "n": 61, "k": 31},
        scalars={"activation": "gelu"},
        distribution="integers",
        seed=8183629666064998016,
        why="",
    )
    made = dataclasses.replace(registry.operator("linear_fp8"), cases=(drawn,))
    assert filled(made, drawn, "bfloat16", drawn.seed)["scale"].item() != 0
    bench = CaseCache(registry=registry, operator=made, host=host, device="cpu")
    try:
        verdict = verify(bench, registry.implementation("linear_fp8", "cpp_blocked"), "bfloat16", effort=EXACT)
        assert isinstance(verdict, Pass), verdict
    finally:
        bench.close()
        host.close()


CONVERSIONS = """
#include "opforge/numeric/fp8.h"
#include "opforge/host.h"
using opforge::TensorView;
template <typename T>
void widen(TensorView codes, TensorView out) {
  for (int64_t i = 0; i < codes.numel(); ++i) {
    T one;
    one.code = opforge::data<uint8_t>(codes)[i];
    opforge::data<float>(out)[i] = one;
  }
}
template <typename T>
void narrow(TensorView x, TensorView out) {
  for (int64_t i = 0; i < x.numel(); ++i) opforge::data<uint8_t>(out)[i] = T(opforge::data<float>(x)[i]).code;
}
OPFORGE_EXPORT(widen_e4m3, widen<opforge::float8_e4m3_t>)
OPFORGE_EXPORT(widen_e5m2, widen<opforge::float8_e5m2_t>)
OPFORGE_EXPORT(narrow_e4m3, narrow<opforge::float8_e4m3_t>)
OPFORGE_EXPORT(narrow_e5m2, narrow<opforge::float8_e5m2_t>)
"""


@pytest.fixture(scope="module")
def conversions(tmp_path_factory):
    import tvm_ffi

    folder = tmp_path_factory.mktemp("fp8")
    (folder / "conversions.cpp").write_text(CONVERSIONS)
    includes, (_, links) = native.includes_of(folder), native.ffi_flags()
    subprocess.run(
        ["g++", *FLAGS, *includes, str(folder / "conversions.cpp"), "-o", str(folder / "conversions.so"), *links],
        check=True,
    )
    return tvm_ffi.load_module(str(folder / "conversions.so"))


@needs_compiler
@pytest.mark.parametrize("name", FORMATS)
def test_conversions_are_those_of_the_standard(conversions, name):
    """All 256 codes; and every number half way between two of them, with its neighbours: to nearest, ties to even,
    saturating.
    """
    import torch

    kind, short = getattr(torch, name), name.removeprefix("float8_").removesuffix("fn")
    codes = torch.arange(256).to(torch.uint8)
    wide = torch.empty(256)
    conversions[f"widen_{short}"](codes, wide)
    assert torch.equal(wide.nan_to_num(-1e9), codes.view(kind).float().nan_to_num(-1e9))
    numbers = wide[wide.isfinite()].unique()
    half_way = (numbers[1:] + numbers[:-1]) / 2
    far = torch.tensor([float("nan"), 1e30, -1e30, float("inf"), -float("inf"), 1e-40, 0.0, -0.0])
    values = torch.cat(
        [numbers, half_way, half_way.nextafter(torch.tensor(1e9)), half_way.nextafter(torch.tensor(-1e9)), far]
    )
    got = torch.empty(values.shape, dtype=torch.uint8)
    conversions[f"narrow_{short}"](values, got)
    largest = torch.finfo(kind).max
    expected = values.clamp(-largest, largest).to(kind)
    assert torch.equal(got.view(kind).float().nan_to_num(-1e9), expected.float().nan_to_num(-1e9))
    assert torch.equal(torch.signbit(got.view(kind).float()), torch.signbit(expected.float()))


@pytest.mark.campaign
@needs_compiler
def test_what_is_not_finite_stays_alone_and_zeros_stay_zeros():
    """A row of zeros must not divide by zero, and an infinity must not make its row vanish."""
    import torch

    import opforge

    x = torch.ones(3, 300)
    x[0] = 0
    x[1, 7], x[1, 200] = float("nan"), float("inf")
    q, scale = opforge.get_kernel("cpp", "quantize_fp8")(x, scaling="block")
    assert scale.shape == (3, 3)
    assert q[0].float().abs().max() == 0
    assert q.float().isnan().nonzero().tolist() == [[1, 7], [1, 200]]
    assert torch.equal(q[1, [6, 8, 201, 299]].float(), torch.full((4,), 448.0))


@pytest.mark.campaign
@needs_compiler
@pytest.mark.parametrize("shape", [(0, 364), (5, 0), (0, 0)])
def test_nothing_has_scales_too(shape):
    """The verifier's hidden cases met it: kernels returned before they wrote a scale. GPUs' leave it to others."""
    import torch

    import opforge

    registry = load()
    for scaling in ("tensor", "row", "block", "tile"):
        q, scale = opforge.get_kernel("cpp", "quantize_fp8")(torch.empty(shape), scaling=scaling)
        _, expected = registry.operator("quantize_fp8").reference(
            torch.empty(shape, dtype=torch.float64), scaling=scaling, q_dtype="float8_e4m3fn"
        )
        assert q.shape == shape and torch.equal(scale, expected.float())
    for name in ("cuda_regions", "triton_regions"):
        kernel = registry.implementation("quantize_fp8", name)
        assert isinstance(kernel.accepts({"m": shape[0], "k": shape[1]}, "float32", {}), Rejected)
        assert isinstance(kernel.accepts({"m": 1, "k": 1}, "float32", {}), Accepted)


@pytest.mark.campaign
@needs_compiler
def test_a_scale_for_each_row_keeps_one_large_token_from_the_others():
    """With one scale for the tensor the other rows fall among the format's subnormals; this is why rows and blocks have
    their own.
    """
    import torch

    import opforge

    torch.manual_seed(1)
    quantize, multiply = opforge.get_kernel("cpp", "quantize_fp8"), opforge.get_kernel("cpp", "matmul_fp8")
    x, w = torch.randn(8, 384), torch.randn(140, 384)
    x[0] *= 1e5
    exact = x.double() @ w.double().T
    errors = {}
    for scaling, of_weights in (("tensor", "tensor"), ("row", "row"), ("block", "tile")):
        (qx, sx), (qw, sw) = quantize(x, scaling=scaling), quantize(w, scaling=of_weights)
        y = multiply(qx, qw, sx, sw, scaling=scaling, out_dtype="float32")
        errors[scaling] = float((y[1:].double() - exact[1:]).norm() / exact[1:].norm())
    assert errors["row"] < 0.06 and errors["block"] < 0.06
    assert errors["tensor"] > 0.3


@needs_compiler
def test_an_operand_in_a_format_that_was_not_named_is_refused():
    """The bytes of the other format would be numbers too: wrong ones."""
    import torch

    from opforge import ops

    a, b = torch.ones(4, 32).to(torch.float8_e4m3fn), torch.ones(8, 32).to(torch.float8_e5m2)
    one = torch.ones(1, 1)
    with pytest.raises(UsageError, match="takes b as float8_e4m3fn"):
        ops.matmul_fp8(a, b, one, one, scaling="tensor")
    y = ops.matmul_fp8(a, b, one, one, scaling="tensor", b_dtype="float8_e5m2", out_dtype="float32")
    assert y.dtype == torch.float32 and torch.equal(y, torch.full((4, 8), 32.0))


@needs_triton
@pytest.mark.campaign
@pytest.mark.parametrize("dtype", FORMATS)
def test_every_number_of_a_format_arrives_in_an_interpreted_product(tmp_path, dtype):
    """Triton 3.6's interpreter lost E5M2's numbers below 2^-14, so that rows of small numbers were wrong, and took
    E4M3's NaN for 480.
    """
    import torch
    from tests.named_kernels import named, renamed

    a = torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype)).reshape(256, 1)
    b = torch.tensor([[1.0], [-0.5]]).to(a.dtype)
    folder, one = renamed(load([]).operator("matmul_fp8"), tmp_path / "codes"), torch.ones(1, 1)
    for left, right in ((a, b), (b, a)):
        y = named(
            folder, "triton_scaled", left, right, one, one, scaling="tensor", b_dtype=dtype, out_dtype="float32"
        )  # fmt: skip
        assert torch.equal(y.nan_to_num(7.0), (left.float() @ right.float().T).nan_to_num(7.0))


AXES = {"m": 512, "n": 512, "k": 2048}


def parameters(scaling, **others):
    return {"scaling": scaling, **others}


@needs_triton
@pytest.mark.parametrize(
    ("scalars", "threads"),
    [
        (parameters("block"), 512),
        (parameters("block", out_dtype="float32", b_dtype="float8_e5m2"), 512),
        (parameters("tensor", out_dtype="float32"), 384),
    ],
    ids=["block", "block-mixed-float32", "tensor-float32"],
)
@pytest.mark.offline
def test_gluon_products_use_wgmma_and_spill_nothing(scalars, threads):
    """Scales of blocks beside two halves of sums spilled: they have a kernel of their own, with three warpgroups."""
    found = inspect_implementation(
        load(), "matmul_fp8", "triton_gluon", target="sm_90a", dtype="float8_e4m3fn", axes=AXES, scalars=scalars
    )
    (kernel,) = found.kernels
    assert kernel.matrix_instructions["QGMMA"] > 0
    assert not kernel.spills and kernel.warnings == ()
    assert kernel.threads == threads
    assert kernel.shared_bytes <= 232448


@needs_triton
@pytest.mark.offline
def test_the_pipelined_product_is_fed_by_tma():
    """A load of single bytes costs half the rate."""
    found = inspect_implementation(
        load(),
        "matmul_fp8",
        "triton_pipelined",
        target="sm_90a",
        dtype="float8_e5m2",
        axes=AXES,
        scalars=parameters("block"),
    )
    (kernel,) = found.kernels
    assert kernel.matrix_instructions["QGMMA"] > 0 and kernel.other_instructions["UTMALDG"] > 0
    assert not kernel.spills


@needs_tilelang
@pytest.mark.parametrize("k", [2048, 400])
@pytest.mark.offline
def test_the_tilelang_product_uses_wgmma_and_spills_nothing(k):
    """By TMA where k is long, behind masks where it is not: both multiply on the tensor cores."""
    found = inspect_implementation(
        load(),
        "matmul_fp8",
        "tilelang_tiled",
        target="sm_90a",
        dtype="float8_e4m3fn",
        axes={**AXES, "k": k},
        scalars=parameters("block"),
    )
    (kernel,) = found.kernels
    assert kernel.matrix_instructions["QGMMA"] > 0
    assert bool(kernel.other_instructions.get("UTMALDG")) == (k == 2048)
    assert not kernel.spills and kernel.warnings == ()


@needs_nvcc
@pytest.mark.offline
def test_the_cuda_product_uses_wgmma_and_spills_nothing():
    """For every format, scaling and result: serialized products or spilled sums would be a silent loss of half the
    rate.
    """
    found = inspect_implementation(
        load(),
        "matmul_fp8",
        "cuda_wgmma",
        target="sm_90a",
        dtype="float8_e4m3fn",
        axes=AXES,
        scalars=parameters("block"),
    )
    # three pairs of formats, two results, scales in or after the sum, by TMA or not
    assert len(found.kernels) == 24
    for kernel in found.kernels:
        assert kernel.matrix_instructions["QGMMA"] > 0
        assert not kernel.spills and kernel.warnings == ()


@needs_nvcc
@pytest.mark.offline
def test_few_rows_of_fp8_stream_through_the_tensor_cores():
    """Scales of blocks come by copies of their own (LDGSTS) beside the operands' boxes."""
    axes = {**AXES, "m": 16}
    found = inspect_implementation(
        load(),
        "matmul_fp8",
        "cuda_stream",
        target="sm_90a",
        dtype="float8_e4m3fn",
        axes=axes,
        scalars=parameters("block"),
    )
    streaming = [kernel for kernel in found.kernels if kernel.matrix_instructions.get("QGMMA", 0) > 0]
    # two results, scales in or after the sum, five numbers of rows; and what the TMA cannot address
    assert (len(streaming), len(found.kernels)) == (20, 24)
    assert [kernel.other_instructions.get("LDGSTS", 0) > 0 for kernel in streaming].count(True) == 10
    for kernel in found.kernels:
        assert not kernel.spills and kernel.warnings == ()


def cut_to(values, largest):
    """What is left of numbers that are aligned with the largest of them and keep 14 bits of it, as Hopper's tensor
    cores do.
    """
    unit = 2.0 ** (largest.clamp_min(1e-300).log2().floor() - 13)
    return (values / unit).trunc() * unit


def on_tensor_cores(a, b, carried):
    """a @ b^T in instructions of 32 terms; sums go over to exact ones after `carried` terms."""
    import torch

    total = torch.zeros(a.shape[0], b.shape[0], dtype=torch.float64)
    for first in range(0, a.shape[1], carried):
        added = torch.zeros_like(total)
        for start in range(first, min(first + carried, a.shape[1]), 32):
            terms = torch.cat(
                [a[:, None, start : start + 32] * b[None, :, start : start + 32], added[..., None]], dim=-1
            )
            added = cut_to(terms, terms.abs().amax(dim=-1, keepdim=True)).sum(dim=-1)
            added = cut_to(added, added.abs())
        total += added
    return total


@pytest.mark.first_only
@pytest.mark.parametrize("distribution", ["normal", "uniform", "skewed", "constant_rows"])
def test_the_bound_is_kept_by_sums_carried_on_every_128_terms_and_not_by_longer_ones(distribution):
    """Products of one sign are all cut in one direction: a bound for wandering sums alone refuses every right kernel
    for them, one that adds up all that
    may be cut off hides sums that are never carried on."""
    import torch

    from opforge.runner.worker.inputs import DISTRIBUTIONS

    operator = load().operator("matmul_fp8")
    largest = torch.finfo(torch.float8_e4m3fn).max
    scale = torch.ones(1, 1, dtype=torch.float64)
    for k, carried in ((128, 128), (512, 128), (4096, 4096)):
        generator = torch.Generator().manual_seed(k)
        a, b = (
            DISTRIBUTIONS[distribution]((rows, k), largest, generator).to(torch.float8_e4m3fn).double()
            for rows in (24, 32)
        )
        largest_error = operator.tolerance.errors(
            {"a": a, "b": b, "scale_a": scale, "scale_b": scale}, {}, {"scaling": "tensor"}, "float8_e4m3fn"
        )["y"].largest
        worst = ((on_tensor_cores(a, b, carried) - a @ b.T).abs() / largest_error).max().item()
        assert worst > 1.5 if carried > 128 else worst < 0.8, (k, carried, worst)


@pytest.mark.parametrize("order", [("sums", "a", "b"), ("sums", "b", "a"), ("a", "b", "sums")])
def test_scales_far_apart_may_meet_the_sums_in_any_order(order):
    """An H100 refused a kernel for an infinity: a sum, times the scale that leaves float32, times the one that brings
    it back. What is finite has to be right all the same.
    """
    import torch

    torch.manual_seed(3)
    operator, axes = load().operator("matmul_fp8"), {"m": 3, "n": 2, "k": 64}
    case = Case(name="x", axes=axes, why="", scalars={"scaling": "tensor", "out_dtype": "float32"})
    a, b = torch.randint(-8, 9, (3, 64)).double(), torch.randint(-8, 9, (2, 64)).double()
    for scales in ((1e37, 1e-31), (1e-37, 1e31), (0.5, 2.0)):
        factors = {"sums": (a @ b.T).float()} | {
            name: torch.full((1, 1), scale) for name, scale in zip("ab", scales, strict=True)
        }
        inputs = {"a": a.to(torch.float8_e4m3fn), "b": b.to(torch.float8_e4m3fn)}
        inputs |= {"scale_a": factors["a"], "scale_b": factors["b"]}
        (expectation,) = consult(operator, case, "float8_e4m3fn", inputs).expectations
        first, second, third = (factors[name] for name in order)
        found = (first * second * third).expand(3, 2).contiguous()
        assert compare(found, expectation).agrees
        assert compare(found * 1.01, expectation).agrees is not bool(found.isfinite().any())


@pytest.mark.parametrize("scaling", ["tensor", "row", "block"])
def test_two_scales_may_leave_float32_before_they_meet_a_sum_of_nothing(scaling):
    """A kernel that multiplies a block's two scales first gets 0 * inf; blocks alone were not allowed to."""
    import torch

    torch.manual_seed(4)
    operator, axes = load().operator("matmul_fp8"), {"m": 3, "n": 200, "k": 300}
    case = Case(name="x", axes=axes, why="", scalars={"scaling": scaling, "out_dtype": "float32"})
    a, b = torch.zeros(3, 300), torch.randint(1, 9, (200, 300)).float()
    a[:, 200:] = 1e-2
    rows, columns, blocks = {"tensor": (1, 1, 1), "row": (3, 200, 1), "block": (3, 2, 3)}[scaling]
    scale_a, scale_b = torch.full((rows, blocks), 2.0), torch.full((columns, blocks), 0.5)
    inputs = {"a": a.to(torch.float8_e4m3fn), "b": b.to(torch.float8_e4m3fn), "scale_a": scale_a, "scale_b": scale_b}
    found = (inputs["a"].float() @ inputs["b"].float().T) * 1.0
    (expectation,) = consult(operator, case, "float8_e4m3fn", inputs).expectations
    assert compare(found, expectation).agrees
    assert not compare(found * torch.nan, expectation).agrees and not compare(found * 1.01, expectation).agrees
    if scaling == "block":
        # only the first 128 terms, which are all 0 in a, of the first 128 columns
        scale_a[:, 0], scale_b[0, 0] = 1e20, 1e19
    else:
        scale_a.fill_(1e20), scale_b.fill_(1e19), inputs["a"].view(torch.uint8).zero_()
    (expectation,) = consult(operator, case, "float8_e4m3fn", inputs).expectations
    wrong = compare(found * torch.nan, expectation).wrong
    assert not wrong[:, :128].any()
    assert bool(wrong[:, 128:].all()) == (scaling == "block")
