"""What compilers make of kernels, read from real binaries: nothing is launched, no GPU is needed."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from opforge.core.definition.implementation import Accepted, Config
from opforge.core.evidence.record import to_json
from opforge.core.language.errors import EnvironmentLacks, OpforgeError, UsageError
from opforge.inspect import (
    ALL,
    Inspection,
    KernelUse,
    cannot_start,
    inspect_for_devices,
    inspect_implementation,
    on_device,
    ruled_out,
    tools,
)
from opforge.inspect.binaries import of_dtype, readable
from opforge.inspect.resources import occupancy, resources_from_ptxas_v
from opforge.machine import device_named
from opforge.registry import load
from opforge.report import device_lines, device_page

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed: pip install triton==3.6.0"
)
needs_tilelang = pytest.mark.skipif(
    importlib.util.find_spec("tilelang") is None, reason="TileLang is not installed: pip install tilelang==0.1.15"
)
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH: install the CUDA toolkit")
needs_cuobjdump = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None and shutil.which("cuobjdump") is None,
    reason="cuobjdump is neither in Triton's wheel nor on PATH",
)

SERIALIZED = """\
ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized \
due to insufficient register resources for the wgmma pipeline in the function 'k'
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
    64 bytes stack frame, 60 bytes spill stores, 132 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 16896 bytes smem
"""


@pytest.mark.offline
@needs_triton
@pytest.mark.parametrize("interpret", ["0", "1"])
def test_a_triton_kernel_is_compiled_whatever_this_process_was_started_with(monkeypatch, interpret):
    """Triton that was imported as an interpreter cannot compile; the child must not inherit that choice."""
    monkeypatch.setenv("TRITON_INTERPRET", interpret)
    found = inspect_implementation(
        load(), "softmax", "triton_onepass", target="sm_90a", dtype="float16", axes={"lead": (8,), "cols": 1024}
    )
    assert found.compile_s > 0
    (kernel,) = found.kernels
    assert kernel.spill_store_bytes == 0 and kernel.local_instructions == 0 and not kernel.spills
    assert kernel.registers > 0 and kernel.threads % 32 == 0
    assert kernel.other_instructions["LDG"] > 0
    assert kernel.residency.fraction > 0 and not kernel.residency.at_most


@needs_nvcc
@needs_cuobjdump
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_map_stores_whole_vectors(dtype):
    """A full tile, a last tile and single elements: one store each. nvcc makes of a struct of 16-bit elements eight
    where it may.
    """
    found = inspect_implementation(
        load(), "relu", "cuda_vectors", target="sm_90a", dtype=dtype, axes={"shape": (1024,)}
    )
    assert [kernel.other_instructions["STG"] for kernel in found.kernels] == [3, 3]


@pytest.mark.offline
@needs_nvcc
@needs_cuobjdump
def test_cuda_softmax_has_no_spills():
    """The registers hold the row: a spill would turn the idea of that kernel upside down."""
    registry = load()
    name = next(item.name for item in registry.implementations("softmax") if item.backend == "cuda")
    found = inspect_implementation(registry, "softmax", name, target="sm_90a", dtype="bfloat16")
    assert found.kernels
    assert all(kernel.spill_store_bytes == 0 and not kernel.spills for kernel in found.kernels)
    assert all("float>" not in kernel.kernel for kernel in found.kernels)


@pytest.mark.offline
@needs_nvcc
@needs_cuobjdump
@needs_tilelang
def test_tilelang_matmul_reaches_wgmma_on_hopper():
    """Without it a float16 product runs on a path that is generations old."""
    found = inspect_implementation(load(), "matmul", "tilelang_tiled", target="sm_90a", dtype="float16")
    (kernel,) = found.kernels
    assert kernel.matrix_instructions["HGMMA"] > 0
    assert kernel.warnings == ()
    # its shared memory is chosen at launch, so the count of blocks is an upper bound, and says so
    assert kernel.shared_bytes is None and kernel.residency.at_most


@pytest.mark.offline
@needs_nvcc
@needs_cuobjdump
@needs_tilelang
@pytest.mark.parametrize(
    "changed",
    [{}, {"BLOCK_M": 128, "BLOCK_N": 256, "STAGES": 4, "PARTS": 2, "CLUSTER": 2, "LEAD": 2, "OVERLAP": True}],
    ids=["default", "cluster"],
)
def test_tilelang_roles_keep_their_registers(changed):
    """TileLang puts a barrier for all threads where it sees no roles, ptxas serializes products whose sums it may not
    keep: neither is an error.
    """
    implementation = load().implementation("matmul", "tilelang_persistent")
    config = Config(tuple({**implementation.default.as_dict(), **changed}.items()))
    axes = {"m": 512, "n": 512, "k": 512}
    assert isinstance(implementation.allows(config, axes, "bfloat16", 2, {"precision": "ieee"}), Accepted)
    (kernel,) = inspect_implementation(
        load(), "matmul", "tilelang_persistent", target="sm_90a", dtype="bfloat16", axes=axes, config=config
    ).kernels
    assert (
        kernel.matrix_instructions["HGMMA"] > 0
        and kernel.other_instructions["UTMALDG"] > 0
        and kernel.other_instructions["UTMASTG"] > 0
    )
    assert kernel.warnings == () and not kernel.spills and kernel.threads == 384


@pytest.mark.offline
@needs_nvcc
@needs_cuobjdump
def test_cuda_matmul_of_a_dtype_reports_its_own_instructions():
    """One file holds the kernels of three dtypes; float32 sums must not borrow the tensor cores of another."""
    registry = load()
    plain = inspect_implementation(registry, "matmul", "cuda_tiled", target="sm_80", dtype="float32")
    tensor = inspect_implementation(registry, "matmul", "cuda_mma", target="sm_80", dtype="float16")
    assert [len(found.kernels) for found in (plain, tensor)] == [1, 2], (
        "one for each storage order of b on tensor cores"
    )
    assert not plain.kernels[0].matrix_instructions and plain.kernels[0].other_instructions["FFMA"] >= 512
    assert all(
        kernel.matrix_instructions["HMMA"] >= 32 and kernel.other_instructions["LDGSTS"] > 0
        for kernel in tensor.kernels
    )
    assert plain.kernels[0].threads == 256 and not plain.kernels[0].spills
    assert to_json(plain)["kernels"][0]["registers"] == plain.kernels[0].registers


@needs_nvcc
@needs_cuobjdump
def test_a_config_reaches_the_compiler():
    """A tuner that inspects one config and gets another's registers would be misled."""
    registry = load()
    default = registry.implementation("matmul", "cuda_tiled").default
    small = Config(tuple({**default.as_dict(), "BLOCK_M": 64}.items()))
    found = inspect_implementation(registry, "matmul", "cuda_tiled", target="sm_80", dtype="float32", config=small)
    assert found.config == small and found.kernels[0].threads == 128


@needs_triton
def test_float32_matmul_on_triton_uses_no_tf32():
    """Triton's own default on NVIDIA is TF32; the interpreter cannot show it, the instructions can."""
    found = inspect_implementation(
        load(), "matmul", "triton_tiled", target="sm_80", dtype="float32", axes={"m": 256, "n": 256, "k": 256}
    )
    assert not found.kernels[0].matrix_instructions and found.kernels[0].other_instructions["FFMA"] > 0


@pytest.mark.offline
@needs_triton
@pytest.mark.parametrize("name", ["triton_tiled", "triton_pipelined", "triton_splitk"])
def test_tf32_that_is_asked_for_reaches_the_warpgroups(name):
    """The same source, and another parameter."""
    found = inspect_implementation(
        load(),
        "matmul",
        name,
        target="sm_90",
        dtype="float32",
        axes={"m": 64 if name == "triton_splitk" else 512, "n": 512, "k": 512},
        scalars={"precision": "tf32"},
    )
    assert found.kernels[0].matrix_instructions["HGMMA"] > 0 and not found.kernels[0].spills


@needs_triton
def test_an_amd_target_is_read_from_its_assembly():
    """The same source, another vendor: mfma instead of wgmma, a wavefront of 64."""
    found = inspect_implementation(
        load(), "matmul", "triton_tiled", target="gfx942", dtype="float16", axes={"m": 256, "n": 256, "k": 256}
    )
    (kernel,) = found.kernels
    assert sum(kernel.matrix_instructions.values()) > 0 and all(
        name.startswith("v_mfma") for name in kernel.matrix_instructions
    )
    assert kernel.threads % 64 == 0 and kernel.residency.max_warps == 32


def test_what_cannot_be_inspected_says_what_to_do_instead():
    """An error ends with the next step."""
    registry = load()
    with pytest.raises(EnvironmentLacks, match="Inspect a triton"):
        inspect_implementation(registry, "softmax", "torch_eager", target="sm_90a", dtype="float16")
    with pytest.raises(UsageError, match="cuda_wgmma takes float16, bfloat16, not float32"):
        inspect_implementation(registry, "matmul", "cuda_wgmma", target="sm_90a", dtype="float32")
    with pytest.raises(UsageError, match="Did you mean"):
        inspect_implementation(registry, "matmul", "cuda_tild", target="sm_90a", dtype="float32")
    # a dtype that the operator does not have showed the kernels of another one
    with pytest.raises(UsageError, match=r"softmax is not defined for float64\. Choose from: float32"):
        inspect_implementation(registry, "softmax", "cuda_block", target="sm_90a", dtype="float64")
    with pytest.raises(UsageError, match=r"No CUDA target named 'hopper'\. Choose one such as: sm_80"):
        inspect_implementation(registry, "softmax", "cuda_block", target="hopper", dtype="float32")


@needs_nvcc
def test_a_compiler_that_refuses_is_quoted():
    """The words of the compiler are the evidence."""
    with pytest.raises(OpforgeError, match="The compiler refused the source"):
        inspect_implementation(load(), "matmul", "cuda_tiled", target="sm_12345", dtype="float32")


def test_missing_tools_name_the_command_that_brings_them(monkeypatch):
    """No Triton wheel and an empty PATH: the message says what to install."""
    monkeypatch.setattr(tools, "_in_triton", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EnvironmentLacks, match="pip install triton"):
        tools.tool("cuobjdump")


def test_serialized_wgmma_and_spills_are_read_from_the_log():
    """ptxas prints the reason before it names the kernel."""
    report = resources_from_ptxas_v(SERIALIZED)["k"]
    assert report.wgmma_serialized == ("C7511: insufficient register resources for the wgmma pipeline",)
    assert (report.registers, report.spill_store_bytes, report.spill_load_bytes, report.shared_bytes) == (
        168,
        60,
        132,
        16896,
    )


@pytest.mark.parametrize(
    ("registers", "threads", "shared", "blocks", "limited_by"),
    [
        (32, 256, 0, 8, ("threads", "registers")),
        (128, 256, 0, 2, ("registers",)),
        (32, 128, 100 * 1024, 2, ("shared",)),
        (32, 32, 0, 32, ("blocks",)),
        (32, 256, 228 * 1024, 0, ("block too large",)),
    ],
)
def test_occupancy_on_hopper(registers, threads, shared, blocks, limited_by):
    """65536 registers, 2048 threads, 228 KiB and 32 blocks per multiprocessor (CUDA C++ programming guide, table of
    compute capabilities).
    """
    found = occupancy(registers, threads, shared, "sm_90")
    assert (found.blocks_per_sm if limited_by != ("block too large",) else 0) == blocks
    assert found.limited_by == limited_by


def test_names_are_told_apart_and_made_readable():
    """Mangled names carry the dtype; a file without templates reports every kernel it has."""
    names = ["_Z1kIfEvPT_", "_Z1kI6__halfEvPT_", "_Z1kI13__nv_bfloat16EvPT_"]
    assert of_dtype(names, "bfloat16") == [names[2]] and of_dtype(names, "float32") == [names[0]]
    assert of_dtype(["softmax_row"], "float16") == ["softmax_row"]
    assert readable("softmax_row") == "softmax_row"
    if shutil.which("c++filt"):
        assert readable(names[1]) == "k<__half>"


def test_inspecting_imports_no_toolchain():
    """`opforge --help` must not pay for Triton because a room that can start it exists."""
    code = "import sys, opforge.inspect; print(sorted({'torch', 'triton', 'tilelang'} & set(sys.modules)))"
    path = os.pathsep.join(item for item in sys.path if item)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.stdout.strip() == "[]"


def test_a_dtype_that_was_not_given_is_one_that_the_kernel_takes():
    """float16 for all would make FP8 kernels fail inside their compiler."""
    from opforge.cli.inspect import dtype_to_compile
    from opforge.registry import load

    registry = load([])

    def of(operator, implementation):
        return dtype_to_compile(registry.operator(operator), registry.implementation(operator, implementation))

    assert [of("softmax", "cuda_block"), of("matmul", "cuda_tf32"), of("matmul_fp8", "triton_pipelined")] == [
        "float16",
        "float32",
        "float8_e4m3fn",
    ]


@pytest.mark.campaign
@needs_triton
def test_one_kernel_for_five_targets_side_by_side():
    """A device that a file rules out, or a compiler does not know, is a reason in the table and no error."""
    devices = [device_named(name) for name in ALL]
    call = {"dtype": "float16", "axes": {"lead": (4096,), "cols": 8192}, "scalars": {}}
    found = inspect_for_devices(load(), "softmax", "triton_onepass", devices, **call)
    assert [item.device for item in found] == list(ALL) and all(item.found for item in found)
    assert {item.limiter for item in found} == {"memory"} and all(item.resident_blocks > 0 for item in found)
    # 2 * 64 MiB over 2.04 and 4.8 TB/s
    least = {item.device: item.least_s for item in found}
    assert least["nvidia-h200"] < least["nvidia-a100-80g"]
    lines = device_lines(found)
    assert len({len(line.rstrip()) for line in lines[:2]}) == 1 and any("registers a thread" in line for line in lines)
    unknown = replace(devices[0], name="<b>mine</b>", target="sm_12")
    (refused,) = inspect_for_devices(load(), "softmax", "triton_onepass", [unknown], **call)
    assert refused.found is None and "sm_12" in refused.reason
    page = device_page("softmax", [*found, refused])
    assert "&lt;b&gt;mine" in page and "<b>mine" not in page


def test_a_device_whose_shared_memory_is_too_small_is_told_without_a_compiler():
    call = {"dtype": "bfloat16", "axes": {"m": 4096, "n": 4096, "k": 4096}, "scalars": {}}
    (found,) = inspect_for_devices(load(), "matmul", "cuda_wgmma", [device_named("a100")], **call)
    assert found.found is None and "stages_fit_shared_memory" in found.reason and found.limiter == "compute"
    assert "not compiled" in device_lines([found])[-1]


def test_a_chip_of_ones_own_sets_limits_occupancy_and_what_can_start():
    """Less shared memory than the target that it is compiled for: a config is refused with one that fits, and of what
    was compiled it is said how much of it fits.
    """
    h200 = device_named("h200")
    chip = replace(h200, name="my-chip", shared_bytes_per_block=100 << 10, shared_bytes_per_unit=101 << 10)
    kernel = load().implementation("matmul", "triton_tiled")
    sizes = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K_BYTES": 128, "GROUP": 8, "num_warps": 8, "num_stages": 4}
    call = (Config(tuple(sizes.items())), {"m": 4096, "n": 4096, "k": 4096}, "float16", {"precision": "ieee"})
    assert ruled_out(kernel, *call, h200) == ""
    assert re.search(r"stages_fit_shared_memory.*--config BLOCK_M=", ruled_out(kernel, *call, chip))

    def compiled(shared):
        use = KernelUse(
            kernel="k", registers=64, stack_bytes=0, spill_store_bytes=0, spill_load_bytes=0, shared_bytes=shared,
            threads=128, residency=None, matrix_instructions={}, other_instructions={}, local_instructions=0,
            warnings=(),
        )  # fmt: skip
        return Inspection(
            operator="x", implementation="x", backend="triton", target="sm_90a", dtype="float16", axes={},
            config=Config(), compile_s=0.0, kernels=(use,),
        )  # fmt: skip

    def blocks(spec):
        return on_device(compiled(40 << 10), spec).kernels[0].residency.blocks_per_unit

    assert (blocks(h200), blocks(chip)) == (5, 2)
    assert cannot_start(compiled(120 << 10), h200) == cannot_start(compiled(40 << 10), chip) == ""
    assert "cannot be launched" in cannot_start(compiled(120 << 10), chip)
