"""Barriers in shared memory in the CUDA emulator, and the kernels for wide rows that rest on them."""

import shutil

import pytest
import torch

from opforge.backends import native
from opforge.backends.cuda import Cuda
from opforge.core.definition.implementation import Accepted, Config, Implementation
from opforge.core.definition.operator import Case
from opforge.registry import load
from opforge.verify import compare
from opforge.verify.oracle.expectation import consult

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

# every block copies a row into shared memory and sends its third element to the next block, which waits for it
PASS_ON = """
#include "opforge/arch/shared_barriers.h"
namespace {
struct Held {
  float row[64];
  opforge::SharedBarrier copied, told;
  float box;
};
__global__ void pass_on(const float* x, float* y) {
  OPFORGE_DYNAMIC_SHARED(Held, held);
  const int blocks = opforge::cluster_blocks(), block = opforge::cluster_block();
  if (threadIdx.x == 0) {
    opforge::init_shared_barrier(&held->copied, 1);
    opforge::init_shared_barrier(&held->told, 1);
    opforge::publish_shared_barriers();
  }
  opforge::cluster_barrier();
  if (threadIdx.x == 40) {
    opforge::arrive_shared_expecting(&held->copied, 256);
    opforge::start_bulk_load(held->row, x + blockIdx.x * 64 + OFFSET, BYTES, &held->copied);
    opforge::arrive_shared_expecting(&held->told, 4);
  }
  if (threadIdx.x < 32) {
    COPIED
    if (threadIdx.x == 7) opforge::send_to_block(&held->box, (block + 1) % blocks, held->row[2], &held->told);
    TOLD
    if (threadIdx.x == 0) y[blockIdx.x] = held->box;
  }
  opforge::cluster_barrier();
}
void launch(opforge::TensorView x, opforge::TensorView y) {
  OPFORGE_LAUNCH_CLUSTERS(pass_on, 3, 4, 64, sizeof(Held), opforge::current_stream(y), opforge::data<float>(x),
      opforge::data<float>(y));
}
}
OPFORGE_EXPORT(run, launch)
"""
RIGHT = {
    "OFFSET": "0",
    "BYTES": "256",
    "COPIED": "opforge::wait_shared(&held->copied, 0);",
    "TOLD": "opforge::wait_shared_sent(&held->told, 0);",
}


def pass_on(folder, **changes):
    text = PASS_ON
    for name, code in {**RIGHT, **changes}.items():
        text = text.replace(name, code)
    source = folder / "cuda_pass_on.cu"
    source.write_text(text)
    kernel = Implementation(name="cuda_pass_on", operator="pass_on", backend="cuda", source=source, idea="")
    x, y = torch.arange(12 * 64.0), torch.full((12,), float("nan"))
    native.entry_point(native.library(kernel, Config(), Cuda().toolchain("cpu")).path)(x, y)
    return y


@pytest.mark.parametrize("schedule", ["forward", "reverse", "5"])
def test_what_is_sent_to_another_block_has_arrived_after_the_wait(tmp_path, monkeypatch, schedule):
    """Blocks of a cluster run in turn: a block that waits must let the one run that it waits for, whatever the order of
    threads.
    """
    monkeypatch.setenv("OPFORGE_EMU_SCHEDULE", schedule)
    sender = torch.tensor([3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10])
    assert pass_on(tmp_path).equal(sender * 64.0 + 2)


def test_a_missing_wait_shows(tmp_path):
    """Read before it was copied: NaN, as shared memory is at the start."""
    assert pass_on(tmp_path, COPIED="").isnan().any()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"BYTES": "240"}, "a barrier in shared memory that nobody completes"),
        (
            {"TOLD": "opforge::wait_shared(&held->told, 0); opforge::wait_shared(&held->told, 1);"},
            "a barrier in shared memory that nobody completes",
        ),
        (
            {"TOLD": "opforge::arrive_shared(&held->told); opforge::wait_shared(&held->told, 0);"},
            "more arrivals|nobody completes",
        ),
        ({"OFFSET": "1"}, "16-byte boundaries"),
    ],
    ids=["fewer bytes than expected", "one phase too many", "too many arrivals", "off the grid"],
)
def test_mistakes_end_with_words(tmp_path, changes, words):
    """On a GPU each of these hangs, or copies nothing."""
    with pytest.raises(RuntimeError, match=words):
        pass_on(tmp_path, **changes)


def wide(operator, name="cuda_wide", **config):
    implementation = load().implementation(operator, name)
    return native.entry_point(
        native.library(implementation, Config(tuple(config.items())), Cuda().toolchain("cpu")).path
    )


# clusters of 4, 8, 16 and 1 blocks in bfloat16; the emulator runs three at once, so that they take several rows each
SHAPES = [(7, 16384), (10, 24568), (4, 65536), (2, 64)]


def worst(function, dtype, rows, cols):
    """The largest error of a softmax, relative to the result and its mean."""
    torch.manual_seed(rows)
    x = (3 * torch.randn(rows, cols)).to(dtype)
    y = torch.full_like(x, float("nan"))
    function(x, y)
    want = x.double().softmax(-1)
    return ((y.double() - want).abs() / (want + want.mean())).max().item()


@pytest.mark.first_only
@pytest.mark.parametrize(
    ("delay", "stay"), [(0, 0), (2, 1), (1, 2)], ids=["comes and goes", "two rows behind", "dealt"]
)
def test_softmax_of_wide_rows(monkeypatch, delay, stay):
    """Slices of 8 KiB bring the clusters that 1 MiB rows have on a GPU; the ring goes round several times in seven
    rows.
    """
    monkeypatch.setenv("OPFORGE_EMU_SCHEDULE", str(delay + 3))
    function = wide("softmax", THREADS=128, VECS=4, RESIDENT=2, DELAY=delay, STAY=stay)
    for dtype, bound in ((torch.bfloat16, 2**-8), (torch.float32, 2e-6)):
        for rows, cols in SHAPES:
            assert worst(function, dtype, rows, cols) < bound, (dtype, rows, cols)


@pytest.mark.first_only
@pytest.mark.parametrize(
    ("held", "spread"), [(1, 16), (0, 16), (1, 2)], ids=["registers", "shared memory", "registers up to two blocks"]
)
def test_softmax_of_slices(monkeypatch, held, spread):
    monkeypatch.setenv("OPFORGE_EMU_SCHEDULE", str(held + spread))
    function = wide("softmax", "cuda_slices", THREADS=128, VECS=4, RESIDENT=2, HELD=held, SPREAD=spread)
    for dtype, bound in ((torch.bfloat16, 2**-8), (torch.float32, 2e-6)):
        for rows, cols in SHAPES:
            assert worst(function, dtype, rows, cols) < bound, (dtype, rows, cols)


@pytest.mark.parametrize("held", [0, 1])
def test_softmax_of_slices_whose_warps_differ(held):
    """A warp's maximum far below the row's, masked columns, rows that are masked throughout, rows with NaN or
    infinity.
    """
    function = wide("softmax", "cuda_slices", THREADS=128, VECS=4, RESIDENT=2, HELD=held, SPREAD=16)
    x = torch.randn(8, 8192)
    x[0] += torch.linspace(0.0, 300.0, 8192)
    x[1, 100:] = -torch.inf
    x[2] = -torch.inf
    x[3, 5000] = torch.nan
    x[4, 700] = torch.inf
    x[5] = 3e38 * torch.linspace(-1.0, 1.0, 8192)
    x[6] = torch.finfo(torch.float32).min
    x[7, :4096] = -3e38
    y = torch.zeros_like(x)
    function(x, y)
    want = x.double().softmax(-1)
    assert y.isnan().equal(want.isnan())
    good = [0, 1, 5, 6, 7]
    assert ((y[good].double() - want[good]).abs() <= 4e-5 * want[good] + 1e-37).all()


def test_a_softmax_of_any_magnitude():
    """A maximum times log2(e), rounded, is off by 2^(exponent - 24): 128 and more from 2^31 on, which exp2 must not be
    given.
    """
    function = wide("softmax", "cuda_onchip", VECS=4, SLICE=512, PLAIN=65536)
    tops = 1.37 * 2.0 ** torch.arange(-20, 127)
    x = torch.stack([tops, tops - 0.7, -tops, tops.nextafter(torch.zeros(())), -3e38 + 0 * tops], dim=1)
    x = torch.cat([x, -x])
    y = torch.full_like(x, torch.nan)
    function(x, y)
    case = Case(name="c", axes={"lead": (len(x),), "cols": x.shape[1]}, why="")
    (expectation,) = consult(load([]).operator("softmax"), case, "float32", {"x": x}).expectations
    assert compare(y, expectation).agrees


WIDE = {"THREADS": 128, "VECS": 4, "RESIDENT": 2, "DELAY": 1, "STAY": 1}
SLICES = {"THREADS": 128, "VECS": 4, "RESIDENT": 2, "HELD": 1, "SPREAD": 16}
WAITS = [
    (
        "cuda_wide",
        "rows/wide.h",
        WIDE,
        "          wait_shared(&held.empty[turn.place], turn.parity ^ 1);\n          if (on_grid)",
    ),
    ("cuda_wide", "rows/wide.h", WIDE, "wait_shared_sent(&held.arrived[slot], turn.parity);"),
    ("cuda_slices", "rows/slices.h", SLICES, "wait_shared_sent(&stats.arrived, 0);"),
]


@pytest.mark.parametrize(
    ("name", "header", "config", "wait"), WAITS, ids=["wide ring", "wide exchange", "slices exchange"]
)
def test_a_wait_that_is_left_out_of_the_kernel_shows(tmp_path, name, header, config, wait):
    """The waits are what keeps the ring and the exchange right: without one of them the emulator must not still be
    content.
    """
    text = (native.INCLUDE / "opforge" / header).read_text()
    assert text.count(wait) == 1
    source = tmp_path / f"{name}.cu"
    kernel = load().implementation("softmax", name).source.read_text()
    left_out = text.replace(wait, ";if (on_grid)" if wait.endswith("(on_grid)") else ";")
    source.write_text(kernel.replace(f'#include "opforge/{header}"', left_out))
    broken = Implementation(name=name, operator="softmax", backend="cuda", source=source, idea="")
    function = native.entry_point(native.library(broken, Config(tuple(config.items())), Cuda().toolchain("cpu")).path)
    try:
        error = worst(function, torch.float32, 64, 16384)
    except RuntimeError as said:
        assert "barrier" in str(said)
    else:
        assert not error < 2e-6


@pytest.mark.first_only
@pytest.mark.parametrize(
    ("name", "config"),
    [("cuda_wide", WIDE), ("cuda_wide", {**WIDE, "STAY": 2})],
    ids=["wide", "dealt"],
)
def test_layernorm_of_wide_rows_off_the_grid(monkeypatch, name, config):
    """Rows that begin between 16-byte boundaries are copied element by element; a mean far from 0 shows a variance that
    cancels.
    """
    monkeypatch.setenv("OPFORGE_EMU_SCHEDULE", "reverse")
    function = wide("layernorm", name, **config)
    torch.manual_seed(0)
    for rows, cols in SHAPES[:3]:
        for shift in (0, 1):
            x = (torch.randn(rows * cols + 1) + 30.0)[shift : shift + rows * cols].view(rows, cols)
            weight, bias = torch.randn(cols), torch.randn(cols)
            y = torch.full_like(x, float("nan"))
            function(x, weight, bias, y, 1e-5)
            want = torch.nn.functional.layer_norm(x.double(), (cols,), weight.double(), bias.double(), 1e-5)
            assert (y.double() - want).abs().max() < 3e-5, (rows, cols, shift)


@pytest.mark.first_only
@pytest.mark.parametrize("held", [0, 1])
def test_rmsnorm_of_slices_off_the_grid(held):
    function = wide("rmsnorm", "cuda_slices", **{**SLICES, "HELD": held})
    torch.manual_seed(0)
    for rows, cols in SHAPES[:3]:
        for shift in (0, 1):
            x = torch.randn(rows * cols + 1)[shift : shift + rows * cols].view(rows, cols)
            weight = torch.randn(cols)
            y = torch.full_like(x, float("nan"))
            function(x, weight, y, 1e-5)
            want = torch.nn.functional.rms_norm(x.double(), (cols,), weight.double(), 1e-5)
            assert (y.double() - want).abs().max() < 3e-6, (rows, cols, shift)


def test_rows_that_do_not_fit_are_refused():
    """Wider than sixteen slices of 64 KiB, or not whole vectors: an error that names the way out."""
    for function in (
        wide("softmax", THREADS=128, VECS=4, RESIDENT=2, DELAY=0, STAY=0),
        wide("softmax", "cuda_slices", **SLICES),
    ):
        for cols in (262152, 1001):
            with pytest.raises(ValueError, match="another implementation"):
                function(torch.zeros(1, cols), torch.zeros(1, cols))


@pytest.mark.parametrize(
    ("operator", "implementation"),
    [("layernorm", "cuda_onchip"), ("rmsnorm", "cuda_onchip"), ("mean_var", "cuda_onchip"), ("softmax", "cuda_block")],
)
@pytest.mark.parametrize(("dtype", "itemsize"), [("float32", 4), ("float16", 2), ("bfloat16", 2)])
def test_rows_of_48_kib_are_left_to_others(operator, implementation, dtype, itemsize):
    """GPT-3's 12288 columns in float32: with the sums that the kernel keeps beside the row a launch exceeded the
    48 KiB that need no asking, and failed on every GPU.
    """
    kernel, most = load().implementation(operator, implementation), 48 * 1024 // itemsize
    beside = 1024 // itemsize

    def takes(cols):
        return isinstance(kernel.accepts({"lead": (4,), "cols": cols}, dtype, {"eps": 1e-5}), Accepted)

    assert [takes(cols) for cols in (most - beside, most - beside + 1, most, most + 1)] == [True, False, False, True]
