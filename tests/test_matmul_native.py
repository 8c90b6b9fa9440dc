"""Matrix products in CUDA and C++. Those that only a Hopper GPU can run, as far as a machine without one can judge
them:
their binaries, and that they are refused elsewhere. Those of the CPU, for each set of registers."""

import dataclasses
import importlib.util
import shutil
import subprocess
from functools import cache

import pytest

from opforge.backends import Call, backend, native
from opforge.backends.cpp import Cpp
from opforge.backends.cuda import Cuda
from opforge.core.definition.implementation import Config
from opforge.core.language.errors import EnvironmentLacks
from opforge.inspect import inspect_implementation
from opforge.registry import load
from opforge.registry.implementation_files import read_implementation

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH: install the CUDA toolkit")
needs_cuobjdump = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None and shutil.which("cuobjdump") is None,
    reason="cuobjdump is neither in Triton's wheel nor on PATH",
)
HOPPER = (("cuda_wgmma", "bfloat16"), ("cuda_wgmma", "float16"), ("cuda_split", "float32"), ("cuda_tf32", "float32"))


@cache
def inspected(name, dtype):
    scalars = {"precision": "tf32" if name == "cuda_tf32" else "ieee"}
    return inspect_implementation(
        load(), "matmul", name, target="sm_90a", dtype=dtype, axes={"m": 256, "n": 256, "k": 256}, scalars=scalars
    )


def check_hopper(found):
    """What the words of ptxas and the instructions must not say."""
    assert found.kernels
    for kernel in found.kernels:
        assert kernel.matrix_instructions["HGMMA"] > 0
        assert kernel.warnings == ()
        assert not kernel.spills and kernel.local_instructions == 0 and kernel.stack_bytes == 0


@needs_nvcc
@needs_cuobjdump
@pytest.mark.parametrize(("name", "dtype"), HOPPER)
@pytest.mark.offline
def test_hopper_kernels_multiply_with_warpgroups_and_spill_nothing(name, dtype):
    """ptxas serialises wgmma, ignores setmaxnreg, or spills sums with no more than a warning; each halves the speed."""
    found = inspected(name, dtype)
    # of cuda_tf32 all but the kernels that copy what lies otherwise, and the one for empty sums
    check_hopper(
        dataclasses.replace(
            found,
            kernels=tuple(kernel for kernel in found.kernels if "product" in kernel.kernel or name != "cuda_tf32"),
        )
    )
    assert found.compile_s < 60


@pytest.mark.slow
@needs_nvcc
@needs_cuobjdump
@pytest.mark.parametrize("operator", ["linear", "linear_add", "linear_fp8"])
def test_epilogues_do_not_push_sums_out_of_the_registers(operator):
    """A thread holds 128 sums of the 232 registers it has: loads of bias or residual for a whole tile at once spill."""
    check_hopper(
        inspect_implementation(
            load(), operator, "cuda_wgmma", target="sm_90a", dtype="bfloat16", axes={"rows": (256,), "n": 256, "k": 256}
        )
    )


@needs_nvcc
@needs_cuobjdump
@pytest.mark.offline
def test_the_wgmma_kernels_read_and_write_by_tma():
    """For each of six widths of tiles, one for each way in which a and b may lie in memory; and one that copies itself,
    for addresses beyond the TMA.
    """
    kernels = inspected("cuda_wgmma", "bfloat16").kernels
    assert [kernel.other_instructions.get("UTMALDG", 0) > 0 for kernel in kernels].count(True) == 24
    assert [kernel.other_instructions.get("UTMASTG", 0) > 0 for kernel in kernels].count(True) == 24
    assert len(kernels) == 25


CHOICE = """
#include <cstdio>
#include "opforge/gemm/wgmma/tunables.h"
namespace wgmma = opforge::wgmma;
int main() {
  int64_t m, n, blocks;
  while (std::scanf("%ld %ld %ld", &m, &n, &blocks) == 3) {
    opforge::Matrix c{};
    c.rows = m, c.cols = n, c.batch = 1;
    wgmma::launch_cheapest<wgmma::Wide<opforge::half_t>>(wgmma::Narrow<opforge::half_t>(), c, blocks, [](auto shape,
        bool turned) {
      std::printf("%d %d\\n", decltype(shape)::kBlockN, turned);
    });
  }
}
"""
CHOSEN = {
    (4096, 4096): (256, 0),
    (512, 14336): (224, 0),
    (3072, 3072): (192, 0),
    (1536, 4096): (128, 0),
    (384, 6144): (160, 1),
    (768, 3072): (160, 0),
    (1024, 1024): (64, 0),
    (1, 8): (64, 0),
}


@needs_nvcc
@pytest.mark.offline
def test_tiles_are_as_wide_as_leaves_the_fewest_columns_to_one_multiprocessor(tmp_path):
    """Of 132; three rows of tiles are odd, so pairs of blocks lie along n there (1)."""
    source, program = tmp_path / "choice.cu", tmp_path / "choice"
    source.write_text(CHOICE)
    native.compile_with(
        [
            *("nvcc", "-std=c++17", "--expt-relaxed-constexpr", "-arch=sm_90a", "-DNARROW=2"),
            *native.includes_of(source),
            str(source),
            "-o",
            str(program),
            *native.ffi_flags()[1],
        ]
    )
    asked = "".join(f"{m} {n} 132\n" for m, n in CHOSEN)
    lines = subprocess.run([program], input=asked, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [tuple(map(int, line.split())) for line in lines] == list(CHOSEN.values())


@needs_nvcc
@needs_cuobjdump
@pytest.mark.offline
def test_few_rows_stream_through_the_tensor_cores():
    """Kernels for 8 to 128 rows, for 128 two, for b row by row and column by column; one that takes what the TMA cannot
    address has no tensor cores.
    """
    found = inspect_implementation(
        load(), "matmul", "cuda_stream", target="sm_90a", dtype="bfloat16", axes={"m": 16, "n": 256, "k": 256}
    )
    streaming = [kernel for kernel in found.kernels if kernel.matrix_instructions.get("HGMMA", 0) > 0]
    assert (len(streaming), len(found.kernels)) == (12, 13)
    # boxes of b, and one of a or two; from 64 rows on those of a once more, for all blocks that share it
    assert sorted(kernel.other_instructions.get("UTMALDG", 0) for kernel in streaming) == [
        3,
        3,
        4,
        4,
        4,
        4,
        4,
        6,
        6,
        6,
        8,
        8,
    ]
    for kernel in found.kernels:
        assert kernel.warnings == ()
        assert not kernel.spills and kernel.local_instructions == 0 and kernel.stack_bytes == 0


@needs_nvcc
@needs_cuobjdump
@pytest.mark.offline
def test_tf32_takes_one_side_from_registers():
    """For wide and narrow tiles, for both layouts of b, and for a c that the TMA cannot address."""
    kernels = [kernel for kernel in inspected("cuda_tf32", "float32").kernels if "product" in kernel.kernel]
    assert len(kernels) == 8
    assert all(
        kernel.other_instructions["UTMALDG"] > 0 and kernel.other_instructions["LDS"] >= 32 for kernel in kernels
    )
    assert [kernel.other_instructions.get("UTMASTG", 0) > 0 for kernel in kernels].count(True) == 4


@needs_nvcc
@needs_cuobjdump
@pytest.mark.offline
def test_a_batch_goes_through_the_same_ring():
    """The kernels of matmul once more, and again with c added: it comes by TMA and is read from shared memory as y is
    written to it.
    """
    found = inspect_implementation(
        load(),
        "batched_matmul",
        "cuda_wgmma",
        target="sm_90a",
        dtype="bfloat16",
        axes={"batch": (3,), "m": 256, "n": 256, "k": 256},
    )
    check_hopper(found)
    copied = [kernel for kernel in found.kernels if kernel.other_instructions.get("UTMALDG", 0) > 0]
    assert all(kernel.other_instructions.get("UTMASTG", 0) > 0 for kernel in copied)
    assert [kernel.other_instructions.get("LDSM", 0) > 0 for kernel in copied].count(True) == 12
    assert (len(copied), len(found.kernels)) == (24, 25)


@needs_nvcc
@pytest.mark.parametrize("name", ["cuda_wgmma", "cuda_split", "cuda_tf32", "cuda_stream"])
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_another_target_is_refused_with_a_reason(tmp_path, name, target):
    """sm_90 without the a has no wgmma: the assembler's complaint would name an instruction and no remedy."""
    registry = load()
    operator, implementation = registry.operator("matmul"), registry.implementation("matmul", name)
    call = Call(
        operator=operator,
        axes={"m": 64, "n": 64, "k": 64},
        dtype="bfloat16",
        scalars={},
        config=implementation.default,
        device="cuda",
    )
    with pytest.raises(EnvironmentLacks, match="needs sm_90a, and the target here is " + target):
        backend("cuda").compile_offline(implementation, call, target, tmp_path)


@pytest.mark.parametrize("name", ["cuda_wgmma", "cuda_split", "cuda_tf32", "cuda_stream"])
def test_the_emulator_is_refused_with_a_reason(name):
    """It has neither TMA nor wgmma; the verdict must be Unsupported, not a page of compiler errors."""
    implementation = load().implementation("matmul", name)
    with pytest.raises(EnvironmentLacks, match=r"needs sm_90a, whose instructions the emulator lacks.*opforge inspect"):
        Cuda().build(implementation, implementation.default, "cpu")


def test_a_file_says_which_architecture_it_needs(tmp_path):
    """Kernels that say nothing go on being compiled for every target."""
    (tmp_path / "cuda_one.cu").write_text('// Idea.\n/* opforge\narch = "sm_90a"\n*/\n')
    (tmp_path / "cuda_two.cu").write_text("// Idea.\n")
    assert [read_implementation("x", tmp_path, name).arch for name in ("cuda_one", "cuda_two")] == ["sm_90a", ""]


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("isa", "needs"), [(1, ("DEFAULT", "AVX2", "AVX512")), (2, ("AVX2", "AVX512")), (3, ("AVX512",))]
)
def test_every_register_width_of_the_cpu_gives_the_same_product(isa, needs):
    """The width is chosen when the kernel runs: a machine with AVX-512 would never try the others."""
    torch = pytest.importorskip("torch")
    if (here := torch.backends.cpu.get_cpu_capability()) not in needs:
        pytest.skip(f"this CPU has {here}, and the test needs {needs[0]}")
    implementation = load().implementation("matmul", "cpp_blocked")
    config = Config(tuple({**implementation.default.as_dict(), "ISA": isa}.items()))
    run = native.entry_point(native.library(implementation, config, Cpp().toolchain()).path)
    for m, n, k in ((65, 63, 33), (29, 64, 300), (9, 1, 5), (7, 9, 0)):
        a, b = (torch.randint(-4, 5, shape).to(torch.float32) for shape in ((m, k), (k, n)))
        c = torch.full((m, n), float("nan"))
        run(a, b, c, 0)
        assert torch.equal(c, a @ b)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_few_rows_are_multiplied_where_the_other_operand_lies(dtype):
    """Whose rows, or whose columns, lie in one piece; up to eight rows, four at a time. Beyond that it is packed."""
    torch = pytest.importorskip("torch")
    implementation = load().implementation("matmul", "cpp_blocked")
    run = native.entry_point(native.library(implementation, implementation.default, Cpp().toolchain()).path)
    whole = torch.full((11, 4200), float("nan"), dtype=getattr(torch, dtype))
    for m in (1, 3, 4, 5, 8, 9):
        for n, k in ((1, 16), (17, 1), (70, 37), (2049, 8), (4100, 5)):
            a, b, across = (torch.randint(-4, 5, shape).to(whole.dtype) for shape in ((m, k), (k, n), (n, k)))
            for right in (b, across.T):
                whole.fill_(float("nan"))
                run(a, right, whole[1 : m + 1, 1 : n + 1], 0)
                assert torch.equal(whole[1 : m + 1, 1 : n + 1], (a.double() @ right.double()).to(whole.dtype))
                assert int(whole.isnan().sum()) == whole.numel() - m * n
