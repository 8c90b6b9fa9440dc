"""Launches that are bound to a class of tensors: Triton's through the CUDA driver, TileLang's through its TVM-FFI
function. No GPU is here: Triton compiles
for one that is not, and the driver is a recorder."""

import ctypes
import re
import shutil
from types import SimpleNamespace

import pytest

from opforge.backends import native, torch_private
from opforge.registry import load

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.filterwarnings("ignore:The given NumPy array is not writable"),
]
KERNEL, MOST = 0x1234, 24
GIVEN = ctypes.POINTER(ctypes.c_void_p)


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        (name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")
    ]
    _fields_ += [("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint)]


class FakeDriver:
    """cuLaunchKernelEx and cuCtxGetDevice: what was launched, the first 8 bytes of each of its parameters."""

    def __init__(self):
        self.launches, self.current, self.status, self.count = [], 0, 0, 0

        def launch(config, kernel, parameters, extra):
            values = [
                ctypes.cast(parameters[place], ctypes.POINTER(ctypes.c_uint64)).contents.value
                for place in range(self.count)
            ]
            self.launches.append((config.contents, kernel, values))
            return self.status

        def current_device(found):
            found[0] = self.current
            return 0

        self._launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Config), ctypes.c_void_p, GIVEN, ctypes.c_void_p)(
            launch
        )
        self._current = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))(current_device)

    def __call__(self):
        from opforge.backends.triton_replay import Driver

        return Driver(*(ctypes.cast(function, ctypes.c_void_p).value for function in (self._launch, self._current)))


@pytest.fixture
def compiled(monkeypatch):
    """Triton for a Hopper GPU that is not there: kernels are compiled, and loading one gives it a made-up handle. CPU
    tensors stand for the GPU's.
    """
    import triton
    from triton.compiler.compiler import CompiledKernel

    from opforge.backends.triton_offline import TARGETS, offline_driver

    if triton.knobs.runtime.interpret:
        pytest.skip("Triton was started as an interpreter")
    made = []

    def load_onto_the_device(kernel):
        kernel.module, kernel.function, kernel._run = "module", KERNEL, "launcher"
        made.append(kernel)

    monkeypatch.setattr(CompiledKernel, "_init_handles", load_onto_the_device)
    monkeypatch.setattr(torch_private, "current_gpu", lambda: -1)
    with offline_driver(TARGETS["sm_90"]):
        yield made


def bound(operator, implementation, tensors, driver, shapes=None, **scalars):
    """The launch of one of opforge's own kernels with these tensors, as the backend binds it; and the kernel."""
    from opforge.backends import triton_replay
    from opforge.backends.module_loading import load_source
    from opforge.backends.triton_lang import Triton

    found = load().implementation(operator, implementation)
    launch, words = Triton().launcher(found), {**scalars, **found.default.as_dict()}
    shapes = shapes or [tuple(tensor.shape) for tensor in tensors]
    return triton_replay.bound(
        lambda *given: launch(*given, **words), load_source(found.source), tensors, shapes, "g++", driver
    )


def sizes_of_parameters(kernel):
    """Bytes of each parameter of a compiled kernel, as PTX declares them."""
    declared = kernel.asm["ptx"].split(".entry", 1)[1].split(")", 1)[0]
    return [int(bits) // 8 for bits in re.findall(r"\.param \.[usbf](\d+)", declared)]


def test_a_bound_launch_passes_what_triton_would(compiled):
    """Grid, threads, shared memory and every parameter that the compiled kernel declares: addresses of the tensors of
    the call, sizes, eps.
    """
    import torch

    driver = FakeDriver()
    x, weight, y = torch.zeros(6, 96), torch.zeros(96), torch.zeros(6, 96)
    launch = bound("rmsnorm", "triton_onchip", [x, weight, y], driver, eps=1e-5)
    assert driver.launches == [], "binding runs nothing"
    (kernel,) = compiled
    sizes = sizes_of_parameters(kernel)
    driver.count = len(sizes)
    other, out = torch.ones(6, 96), torch.ones(6, 96)
    assert launch(other, weight, out)
    ((config, handle, values),) = driver.launches
    eps = ctypes.c_uint32.from_buffer(ctypes.c_float(1e-5)).value
    # rows, cols and strides that are multiples of 16 stay arguments; the two at the end are scratch memory
    assert [value % 256**size for value, size in zip(values, sizes, strict=True)] == [
        other.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        6,
        96,
        96,
        96,
        eps,
        0,
        0,
    ]
    assert handle == KERNEL
    assert (config.block_x, config.block_y, config.block_z, config.shared) == (
        32 * kernel.metadata.num_warps,
        1,
        1,
        kernel.metadata.shared,
    )
    assert config.grid_x >= 1 and (config.grid_y, config.grid_z, config.count) == (1, 1, 0)


@pytest.mark.parametrize(
    ("operator", "implementation", "shape"),
    [("vector_add", "triton_blocks", (3, 5)), ("softmax", "triton_onepass", (7, 33))],
)
def test_leading_axes_are_collapsed_without_a_view(compiled, operator, implementation, shape):
    """The kernel sees one shape, the caller's tensors have another; a size of 1 is compiled in, and no argument."""
    import torch

    driver = FakeDriver()
    count = len(load().operator(operator).inputs) + 1
    tensors = [torch.zeros(1, *shape) for _ in range(count)]
    kernel_shape = (15,) if operator == "vector_add" else shape
    launch = bound(operator, implementation, tensors, driver, [kernel_shape] * count)
    driver.count = len(sizes_of_parameters(compiled[0]))
    assert launch(*tensors)
    (_, _, values) = driver.launches[0]
    assert values[:count] == [tensor.data_ptr() for tensor in tensors]
    assert len(values) == count + (1 if operator == "vector_add" else 4) + 2


def test_another_class_of_tensors_is_not_launched(compiled):
    """The kernel was compiled for addresses that are multiples of 16 and for these sizes: anything else would be a
    wrong answer.
    """
    import torch

    driver = FakeDriver()
    x, longer, y = torch.zeros(64), torch.zeros(65), torch.zeros(64)
    launch = bound("vector_add", "triton_blocks", [x, x.clone(), y], driver)
    assert launch(x, x, y)
    for given in (
        [longer[1:], x, y],
        [x, longer[1:], y],
        [x, x, longer[1:]],
        [longer, x, y],
        [x.double(), x, y],
        [torch.zeros(128)[::2], x, y],
        [x, y],
    ):
        assert not launch(*given)
    driver.current = 1
    assert not launch(x, x, y), "the kernel lies in another device's context"
    driver.current = 0
    assert launch(x, x, y)
    assert len(driver.launches) == 2


def test_whoever_listens_to_triton_hears_of_every_launch(compiled):
    """Profilers hook Triton's own launcher, which a bound launch goes round."""
    import torch
    import triton

    driver, x = FakeDriver(), torch.zeros(64)
    launch = bound("vector_add", "triton_blocks", [x, x.clone(), x.clone()], driver)
    listening = triton.knobs.runtime.launch_enter_hook
    listening.add(print)
    try:
        assert not launch(x, x, x)
    finally:
        listening.remove(print)
    assert launch(x, x, x)
    assert len(driver.launches) == 1


def test_a_class_is_bound_by_a_first_call_that_is_not_aligned(compiled):
    """Nor is its address kept: the next call may be aligned."""
    import torch

    driver, x, y = FakeDriver(), torch.zeros(64), torch.zeros(64)
    launch = bound("vector_add", "triton_blocks", [torch.zeros(65)[1:], x, y], driver)
    assert launch(x, x, y)
    assert not launch(torch.zeros(65)[1:], x, y)


def test_what_the_driver_refuses_is_an_error(compiled):
    """Not a launch that was not made: that would be tried again in another way, and hide it."""
    import torch

    driver, x = FakeDriver(), torch.zeros(64)
    launch = bound("vector_add", "triton_blocks", [x, x.clone(), x.clone()], driver)
    driver.status = 719
    with pytest.raises(RuntimeError, match="719"):
        launch(x, x, x)


@pytest.mark.parametrize(
    "why",
    [
        "zeroes its output",
        "launches twice",
        "an address as a number",
        "scratch memory",
        "another Triton",
        "another device is current",
        "no TVM-FFI",
    ],
)
def test_what_is_no_single_plain_launch_is_not_bound(compiled, monkeypatch, why):
    """It is left to Triton's own launcher, which knows how."""
    import torch
    import triton

    from opforge.backends import triton_replay
    from opforge.backends.module_loading import load_source

    module = load_source(load().implementation("vector_add", "triton_blocks").source)
    kernel = module.vector_add_block

    def launch(x, y, z):
        if why == "zeroes its output":
            z.zero_()
        n = x.data_ptr() if why == "an address as a number" else 64
        for _ in range(2 if why == "launches twice" else 1):
            kernel[(1,)](x, y, z, n, 1, 1, 1, BLOCK=512, num_warps=4)

    if why == "another Triton":
        monkeypatch.setattr(triton, "__version__", "4.0.0")
    if why == "another device is current":
        monkeypatch.setattr(torch_private, "current_gpu", lambda: 1)
    if why == "no TVM-FFI":
        native.helper.cache_clear()
        native.helper_path.cache_clear()
        monkeypatch.setattr(native, "installed", lambda name: name != "tvm_ffi")
    if why == "scratch memory":
        monkeypatch.setattr(
            triton_replay,
            "_plain",
            lambda metadata, plain=triton_replay._plain: plain(
                SimpleNamespace(**{**metadata._asdict(), "global_scratch_size": 128})
            ),
        )
    tensors = [torch.zeros(64) for _ in range(3)]
    try:
        assert triton_replay.bound(launch, module, tensors, [(64,)] * 3, "g++", FakeDriver()) is None
    finally:
        native.helper.cache_clear()
        native.helper_path.cache_clear()


COPIES_SOMETIMES = """#include "opforge/ffi.h"
namespace {
bool copy(opforge::TensorView x, opforge::TensorView y, int64_t answer) {
  const float* from = static_cast<const float*>(x.data_ptr());
  float* to = static_cast<float*>(y.data_ptr());
  for (int64_t i = 0; answer != 0 && i < x.size(0) * x.size(1); ++i) to[i] = from[i];
  return answer != 0;
}
}  // namespace
OPFORGE_EXPORT(run, copy)
"""


@pytest.mark.parametrize("answer", [True, False])
def test_a_call_that_is_refused_takes_the_other_way(tmp_path, answer):
    """By the kernel, or because an address is not aligned: the same call is made in the general way, which knows all of
    them.
    """
    import torch
    import tvm_ffi

    from opforge.backends import Kernel
    from opforge.runner.worker.prepared_call import prepared

    source, library, general = tmp_path / "copy.cpp", tmp_path / "copy.so", []
    source.write_text(COPIES_SOMETIMES)
    native.compile_with(
        [
            "g++",
            *native.BINDING_FLAGS,
            f"-I{native.INCLUDE}",
            *native.ffi_flags()[0],
            str(source),
            "-o",
            str(library),
            *native.ffi_flags()[1],
        ]
    )
    function = tvm_ffi.load_module(str(library)).run

    def run(inputs, outputs, scalars):
        general.append(tuple(inputs[0].shape))
        outputs[0].copy_(inputs[0])

    kernel = Kernel(
        run=run, bound=lambda tensors, shapes: native.bound(function, tensors, shapes, (int(answer),), "g++", 16)
    )
    x, shifted = torch.randn(2, 3, 4), torch.randn(25)[1:].view(2, 3, 4)
    call = prepared(kernel, [x], [(6, 4)], [(2, 3, 4)], [(6, 4)], [torch.float32], {}).run
    assert torch.equal(call([x]), x)
    assert general == ([] if answer else [(6, 4)])
    assert torch.equal(call([shifted]), shifted)
    assert general[-1:] == [(6, 4)]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc to compile for a GPU")
def test_tilelang_is_called_without_its_front():
    """The function that its front would call, with these very tensors: it finds out itself that they are not on
    a GPU.
    """
    import tilelang
    import torch
    import tvm

    from opforge.backends import Call
    from opforge.backends.tilelang_lang import TileLang, _entry

    operator, found = load().operator("vector_add"), load().implementation("vector_add", "tilelang_blocks")
    call = Call(operator=operator, axes={"n": 64}, dtype="float32", scalars={}, config=found.default, device="cuda")
    build, _ = TileLang().program(found, call, "cuda")
    entry = _entry(tilelang.compile(build(), target=tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})))
    tensors = [torch.zeros(64) for _ in range(3)]
    launch = native.bound(entry, tensors, [(64,)] * 3, (), "g++", 16)
    assert not launch(torch.zeros(65)[1:], *tensors[1:])
    with pytest.raises(RuntimeError, match="device_type mismatch, expected cuda"):
        launch(*tensors)
