"""TF32 as a precision that a product may be asked for: what the bound accepts, who takes part, and what stays as it
was.
"""

import dataclasses
import shutil
import threading
import uuid

import pytest

torch = pytest.importorskip("torch")

from opforge.core.definition.implementation import Rejected  # noqa: E402
from opforge.core.definition.operator import Case  # noqa: E402
from opforge.core.evidence.timing import Timing  # noqa: E402
from opforge.core.evidence.verdict import Pass  # noqa: E402
from opforge.core.language.errors import UsageError  # noqa: E402
from opforge.definitions.precision import matrix_errors  # noqa: E402
from opforge.device.torch import sums  # noqa: E402
from opforge.device.torch.precision import products_in  # noqa: E402
from opforge.dispatch import Chooser, function_of  # noqa: E402
from opforge.machine import descriptors  # noqa: E402
from opforge.registry import load  # noqa: E402
from opforge.roofline import compute_rate  # noqa: E402
from opforge.runner import Isolated  # noqa: E402
from opforge.store import Store  # noqa: E402
from opforge.verify import QUICK, CaseCache, verify  # noqa: E402
from opforge.verify.judging.elements import compare  # noqa: E402
from opforge.verify.oracle.expectation import consult  # noqa: E402
from opforge.workbench import BenchOptions, verify_all  # noqa: E402

TF32 = {"precision": "tf32"}


def cut_off(x):
    """What a tensor core reads of a float32."""
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


def rounded(x):
    """To the nearest TF32, ties away from zero."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def in_bfloat16(x):
    return x.bfloat16().float()


def agree(precision, changes, m=64, n=72, k=96, fill=torch.randn):
    """Of each change of the factors, whether the bound accepts their product."""
    torch.manual_seed(k)
    a, b = fill(m, k), fill(k, n)
    operator = load().operator("matmul")
    case = Case(name="x", axes={"m": m, "n": n, "k": k}, why="", scalars={"precision": precision})
    (expectation,) = consult(operator, case, "float32", {"a": a, "b": b}).expectations
    return [compare((change(a).double() @ change(b).double()).float(), expectation).agrees for change in changes]


def agrees(precision, change, **sizes):
    """Of one change."""
    return agree(precision, [change], **sizes) == [True]


@pytest.mark.parametrize("k", [1, 8, 96, 1000, pytest.param(4096, marks=pytest.mark.campaign)])
@pytest.mark.parametrize(
    "fill", [torch.randn, torch.rand, lambda *shape: torch.randn(*shape).exp()], ids=["normal", "positive", "skewed"]
)
def test_the_bound_of_tf32_accepts_tf32(k, fill):
    """Cut off or rounded, both are what hardware does; all digits are right too."""
    assert agree("tf32", [cut_off, rounded, lambda x: x], k=k, fill=fill) == [True] * 3


@pytest.mark.parametrize("k", [1, 8, 96, 1000, 4096])
def test_the_bound_of_tf32_refuses_bfloat16(k):
    """Eight bits are not eleven, however many terms there are: the errors of both grow like the root of their
    number.
    """
    assert not agrees("tf32", in_bfloat16, k=k)


@pytest.mark.parametrize(("precision", "largest", "beyond"), [("tf32", 3.4028e38, True), ("tf32", 3.40e38, False),
                                                              ("ieee", 3.4028e38, False)])  # fmt: skip
def test_a_factor_that_tf32_rounds_to_infinity_may_make_one_and_no_other_row_may(precision, largest, beyond):
    """cuBLAS and a kernel of ours got a Mismatch on an H200 for the infinity that rounding to 11 bits gives."""
    a, b = torch.ones(3, 4, dtype=torch.float64), torch.full((4, 2), 0.1, dtype=torch.float64)
    a[1, 2] = largest
    reached = matrix_errors(a, b, precision, "float32").reached
    past = torch.zeros(3, dtype=torch.bool) if reached is None else (reached > 1e39).all(-1)
    assert past.tolist() == [False, beyond, False]


@pytest.mark.parametrize("change", [cut_off, rounded])
def test_tf32_is_refused_where_it_was_not_asked_for(change):
    """The default is what it was: every digit of float32."""
    assert not agrees("ieee", change, k=24)


def in_parts(count):
    """A factor as the sum of so many bfloat16."""

    def change(x):
        found = torch.zeros_like(x)
        for _ in range(count):
            found = found + (x - found).bfloat16().float()
        return found

    return change


def test_three_bfloat16_are_all_digits_but_those_below_the_smallest_bfloat16():
    """An H100 refused cuda_split for a product of 3e-38 and 3e16: where a factor is that small, its last digits are in
    no bfloat16. Two parts are refused there as everywhere, where factors are larger.
    """
    tiny = lambda *shape: torch.randn(*shape) * (2.0**-122 if shape[0] == 64 else 2.0**60)  # noqa: E731
    for fill in (tiny, torch.randn):
        assert agrees("ieee", in_parts(3), k=2, fill=fill)
    small = lambda *shape: torch.randn(*shape) * (2.0**-100 if shape[0] == 64 else 2.0**60)  # noqa: E731
    for fill in (small, torch.randn):
        assert not agrees("ieee", in_parts(2), k=2, fill=fill)


def test_only_float32_factors_have_a_precision(tmp_path):
    """A parameter that silently means nothing would be believed to mean something."""
    operator = load().operator("matmul")
    workload = next(found for found in operator.workloads if found.scalars == TF32)
    assert operator.takes(workload, "float32") and not operator.takes(workload, "bfloat16")
    chooser = Chooser(registry=load(), store_url=f"sqlite:///{tmp_path / 'records.db'}")
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    torch.testing.assert_close(function_of("matmul", chooser).compute([a, b], TF32), a @ b)
    with pytest.raises(UsageError, match=r"tf32_is_for_float32.*leave precision out"):
        function_of("matmul", chooser).compute([a.half(), b.half()], TF32)


def test_kernels_for_all_digits_and_for_few_are_told_apart():
    """Six products where one would do, or one where six are needed."""
    registry, axes = load(), {"m": 64, "n": 64, "k": 64}
    for name, taken in (
        ("cuda_split", "ieee"),
        ("triton_bf16x6", "ieee"),
        ("cuda_tf32", "tf32"),
        ("cuda_mma", "tf32"),
        ("triton_pipelined", "tf32"),
    ):
        implementation = registry.implementation("matmul", name)
        for precision in ("ieee", "tf32"):
            refused = isinstance(implementation.accepts(axes, "float32", {"precision": precision}), Rejected)
            assert refused == (precision != taken), (name, precision)
    assert not isinstance(
        registry.implementation("matmul", "cuda_mma").accepts(axes, "bfloat16", {"precision": "ieee"}), Rejected
    )


def test_the_roof_of_tf32_is_its_own():
    """A third of it is the roof of float32: TF32 under that one would be faster than the device."""
    spec, operator = descriptors()["nvidia-h200"], load().operator("matmul")
    form = operator.compute_dtype_of("float32", TF32)
    assert form == "tfloat32" and operator.compute_dtype_of("bfloat16", {}) == "bfloat16"
    assert compute_rate(spec, form, "matrix").name == "matrix_tfloat32"
    assert compute_rate(spec, form, "matrix").value > 2 * compute_rate(spec, "float32", "matrix").value
    # a processor that has no TF32 is not slower at it than at float32
    assert (
        compute_rate(
            dataclasses.replace(spec, ceilings=(), nominal_flops_per_s={"float32": 1e12}), form, "matrix"
        ).value
        == 1e12
    )


@pytest.mark.campaign
def test_a_time_in_tf32_says_nothing_of_float32(tmp_path):
    """The same kernel takes both, and is seven times as fast in one: its time would win every call in the other."""
    registry, store = load(), f"sqlite:///{tmp_path / 'records.db'}"
    options = BenchOptions(
        device="cpu", dtypes=("float32",), implementations=("cpp_blocked", "torch_eager"), effort=QUICK
    )
    with Isolated() as host:
        passes = list(verify_all(registry, ["matmul"], options, host))

    def timed(record, seconds, precision):
        timing = Timing(samples_s=(seconds,) * 5, batch=1, timer="host", cache="warm", overhead_s=0.0, conditions=())
        return dataclasses.replace(
            record,
            id=uuid.uuid4().hex,
            timing=timing,
            workload="w",
            axes={"m": 64, "n": 64, "k": 64},
            scalars={"precision": precision},
        )

    times = {("cpp_blocked", "ieee"): 3.0, ("torch_eager", "ieee"): 2.0, ("cpp_blocked", "tf32"): 1.0}
    with Store.open(store) as opened:
        for record in passes:
            assert isinstance(record.verdict, Pass)
            opened.add(
                [
                    record,
                    *(
                        timed(record, seconds, precision)
                        for (name, precision), seconds in times.items()
                        if record.implementation == name
                    ),
                ]
            )
    multiply = function_of("matmul", Chooser(registry=registry, store_url=store))
    a, b = torch.randn(64, 64), torch.randn(64, 64)
    assert multiply.why(a, b).implementation.name == "torch_eager"
    assert multiply.why(a, b, precision="tf32").implementation.name == "cpp_blocked"


@dataclasses.dataclass
class OnGpu:
    """As much of a tensor as is asked for."""

    dtype: torch.dtype = torch.float32
    is_cuda: bool = True


def chosen_now(*operands):
    return torch.backends.cuda.matmul.fp32_precision


@pytest.mark.filterwarnings("error")
@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="needs torch 2.9 or newer")
@pytest.mark.parametrize("process", ["highest", "high"])
def test_pytorch_multiplies_as_asked_and_the_process_keeps_its_choice(process):
    """Whatever the process has chosen, by the older switch or not, without a word."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(process)
    try:
        left = torch.backends.cuda.matmul.fp32_precision
        assert products_in("tf32", chosen_now, OnGpu()) == "tf32"
        assert products_in("ieee", chosen_now, OnGpu()) != "tf32"
        assert (
            products_in("tf32", chosen_now, OnGpu(is_cuda=False))
            == left
            == products_in("tf32", chosen_now, OnGpu(dtype=torch.float16))
        )

        def fails(*operands):
            raise RuntimeError("out of memory")

        with pytest.raises(RuntimeError, match="out of memory"):
            products_in("tf32" if process == "highest" else "ieee", fails, OnGpu())
        assert torch.backends.cuda.matmul.fp32_precision == left
        assert torch.get_float32_matmul_precision() == process and torch.backends.cuda.matmul.allow_tf32 == (
            process == "high"
        )
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="needs torch 2.9 or newer")
def test_threads_that_ask_for_different_precisions_leave_nothing_behind():
    """Each would restore what the other had set."""
    left, wrong = torch.backends.cuda.matmul.fp32_precision, []

    def work(precision):
        for _ in range(2000):
            if (products_in(precision, chosen_now, OnGpu()) == "tf32") != (precision == "tf32"):
                wrong.append(precision)

    threads = [threading.Thread(target=work, args=(precision,)) for precision in ("tf32", "ieee", "tf32")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and torch.backends.cuda.matmul.fp32_precision == left


PARTS = {
    torch.bfloat16: "allow_bf16_reduced_precision_reduction",
    torch.float16: "allow_fp16_reduced_precision_reduction",
}


@pytest.mark.parametrize("dtype", PARTS, ids=str)
@pytest.mark.parametrize("by_public_names", [False, True])
def test_sums_of_16_bit_products_are_kept_in_float32_and_the_process_keeps_its_choice(
    dtype, by_public_names, monkeypatch
):
    """cuBLAS rounds parts of a sum by default: 3.375 for 3.09 on an H200."""
    settings, name = torch.backends.cuda.matmul, PARTS[dtype]
    if by_public_names:
        kind = name.split("_")[1]
        monkeypatch.delattr(torch._C, f"_get_cublas_{name}")
        given = sums.choice_of(kind)
        monkeypatch.undo()
        monkeypatch.setitem(sums.CHOICES, dtype, given)

    def rounded(*operands):
        return getattr(settings, name)

    def fails(*operands):
        raise RuntimeError("out of memory")

    try:
        for choice in (True, False):
            setattr(settings, name, choice)
            assert sums.sums_in_float32(rounded, OnGpu(dtype=dtype)) is False
            # nobody's sums but a GPU's 16-bit ones
            assert sums.sums_in_float32(rounded, OnGpu()) is choice
            assert sums.sums_in_float32(rounded, OnGpu(dtype=dtype, is_cuda=False)) is choice
            with pytest.raises(RuntimeError, match="out of memory"):
                sums.sums_in_float32(fails, OnGpu(dtype=dtype))
            assert getattr(settings, name) is choice
    finally:
        setattr(settings, name, True)


@pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "allow_fp16_accumulation"), reason="needs torch 2.7 or newer"
)
def test_sums_in_float16_that_the_process_asked_for_are_not_ours():
    settings = torch.backends.cuda.matmul
    settings.allow_fp16_accumulation = True
    try:
        inside = sums.sums_in_float32(lambda a: settings.allow_fp16_accumulation, OnGpu(dtype=torch.float16))
        assert inside is False and settings.allow_fp16_accumulation
    finally:
        settings.allow_fp16_accumulation = False


@pytest.mark.campaign
@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs a C++ compiler: apt-get install g++")
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_tensor_cores_multiply_tf32_from_either_layout_of_b(layout):
    """ldmatrix moves float32 as pairs of halves, mma.m16n8k8 wants them so; a b stored row by row is read element by
    element.
    """
    registry = load()
    case = Case(
        name="x",
        axes={"m": 20, "n": 24, "k": 88},
        why="three steps of the ring, the last one and the last rows and columns cut off",
        layout=layout,
        scalars=TF32,
    )
    with Isolated() as host:
        bench = CaseCache(registry=registry, operator=registry.operator("matmul"), host=host, device="cpu")
        try:
            verdict = verify(bench, registry.implementation("matmul", "cuda_mma"), "float32", cases=[case])
        finally:
            bench.close()
    assert isinstance(verdict, Pass), verdict
    # its factors are cut off: nearer to the bound than float32 sums would be
    assert max(metrics.worst_ratio for checked in verdict.checked for metrics in checked.metrics) > 0.05
