"""The gradients of the norms whose rows wait in shared memory (cuda_ring), in the CUDA emulator."""

import shutil

import pytest
import torch

from opforge.backends import native
from opforge.backends.cuda import Cuda
from opforge.core.definition.implementation import Accepted, Config, Implementation
from opforge.registry import load

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

OPERATORS = ("layernorm_backward", "rmsnorm_backward")
BY_WIDTH = {"VECS": 0, "STAGES": 0, "THREADS": 0}
TWO_ROWS_OF_FOUR_WARPS = {"VECS": 1, "STAGES": 3, "THREADS": 256}


def built(implementation, config):
    return native.entry_point(
        native.library(implementation, Config(tuple(config.items())), Cuda().toolchain("cpu")).path
    )


def ring(operator, **config):
    return built(load().implementation(operator, "cuda_ring"), config or BY_WIDTH)


def inputs(dtype, rows, cols, shift=0):
    """x, weight, dy and room for the results; `shift` elements past an aligned address. A mean far from 0 shows a
    variance that cancels.
    """
    torch.manual_seed(rows + cols)

    def make(*shape):
        flat = torch.randn(shift + torch.Size(shape).numel())
        return flat.to(dtype)[shift:].view(shape)

    x, weight, dy = make(rows, cols), make(cols), make(rows, cols)
    x += 3.0
    return x, weight, dy


def gradients(operator, function, x, weight, dy):
    """dx, dweight (and dbias) of a call."""
    outputs = [
        torch.full_like(like, float("nan"))
        for like in (x, weight, weight)[: 3 if operator == "layernorm_backward" else 2]
    ]
    function(x, weight, dy, *outputs, 1e-5)
    return outputs


def worst(operator, function, x, weight, dy):
    """The largest error of a result, in roundings of the dtype, relative to the result and its mean."""
    outputs = gradients(operator, function, x, weight, dy)
    wants = load().operator(operator).reference(x.double(), weight.double(), dy.double(), 1e-5)
    unit = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-20}[x.dtype]
    return max(
        ((got.double() - want).abs() / unit / (want.abs() + want.abs().mean())).max().item()
        for got, want in zip(outputs, wants, strict=True)
    )


# one warp to a row and many; whole vectors for every thread, and a last warp that has few; mostly more rows than the
# ring has places
SHAPES = {
    torch.bfloat16: [
        (201, 64),
        (97, 256),
        (70, 504),
        (75, 1024),
        (29, 2560),
        (17, 4096),
        (9, 5000),
        (13, 8192),
        (9, 12288),
    ],
    torch.float16: [(70, 768), (20, 136), (1, 2048)],
    torch.float32: [(201, 64), (97, 128), (75, 260), (41, 1024), (17, 4096), (9, 5124), (9, 6144)],
}


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_rows_of_every_width(monkeypatch, operator):
    """Widths choose vectors, stages and threads: each of these choices must be right, whatever the order of threads."""
    monkeypatch.setenv("OPFORGE_EMU_SCHEDULE", "5")
    function = ring(operator)
    widest = {torch.bfloat16: 16384, torch.float32: 8192} if operator == "rmsnorm_backward" else {}
    for dtype, shapes in SHAPES.items():
        for rows, cols in [*shapes, *((7, widest[dtype]) for _ in range(dtype in widest))]:
            assert worst(operator, function, *inputs(dtype, rows, cols)) < 2, (dtype, rows, cols)


@pytest.mark.first_only
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_order_of_threads_changes_no_bit(monkeypatch, operator):
    """Sums are added up in an order that nothing but the shape decides."""
    function = ring(operator, **TWO_ROWS_OF_FOUR_WARPS)
    tensors = inputs(torch.float32, 50, 388)
    found = []
    for schedule in ("forward", "reverse", "7"):
        monkeypatch.setenv("OPFORGE_EMU_SCHEDULE", schedule)
        assert worst(operator, function, *tensors) < 2
        found.append(gradients(operator, function, *tensors))
    for other in found[1:]:
        assert all(torch.equal(one, same) for one, same in zip(found[0], other, strict=True))


@pytest.mark.first_only
@pytest.mark.parametrize("operator", OPERATORS)
def test_rows_off_the_grid(operator):
    """Addresses and strides are not known when an implementation is chosen: what no 16-byte copy can fetch must be
    right all the same.
    """
    function = ring(operator, **TWO_ROWS_OF_FOUR_WARPS)
    x, weight, dy = inputs(torch.bfloat16, 9, 264, shift=1)
    assert worst(operator, function, x, weight, dy) < 2
    x, weight, dy = inputs(torch.bfloat16, 9, 267)
    assert worst(operator, function, x[:, 1:265], weight[:264].clone(), dy[:, :264]) < 2
    x, weight, dy = inputs(torch.bfloat16, 9, 280)
    assert worst(operator, function, x[:, 8:272], weight[:264].clone(), dy[:, :264]) < 2, (
        "and on the grid, with a stride"
    )


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_rows_wider_than_clusters_of_four_vectors_a_thread(operator):
    """Past 131072 columns a thread of cuda_persistent has eight vectors of 32 bits; of single elements it keeps none
    and reads them again.
    """
    function = built(load().implementation(operator, "cuda_persistent"), {})
    for dtype, cols in [(torch.float32, 131076), (torch.float32, 131073), (torch.bfloat16, 131073)]:
        assert worst(operator, function, *inputs(dtype, 2, cols)) < 2, (dtype, cols)


@pytest.mark.parametrize("operator", OPERATORS)
def test_no_rows(operator):
    """Sums of nothing are 0, and no block is launched for rows."""
    outputs = gradients(operator, ring(operator, **TWO_ROWS_OF_FOUR_WARPS), *inputs(torch.float32, 0, 64))
    assert all(not sums.any() for sums in outputs[1:])


@pytest.mark.campaign
@pytest.mark.parametrize("wait", ["wait_for_copies<kStages - 1>();", "row_barrier(which, width);"])
def test_a_wait_that_is_left_out_of_the_kernel_shows(tmp_path, monkeypatch, wait):
    """Else a row is read before it has come, or its sums before every warp has made them."""
    monkeypatch.setenv("OPFORGE_EMU_SCHEDULE", "reverse")
    header = (native.INCLUDE / "opforge" / "norm" / "backward_ring.h").read_text()
    assert header.count(wait) == 1
    source = tmp_path / "cuda_ring.cu"
    kernel = load().implementation("rmsnorm_backward", "cuda_ring")
    source.write_text(
        kernel.source.read_text().replace('#include "opforge/norm/backward_ring.h"', header.replace(wait, ";"))
    )
    broken = Implementation(name="cuda_ring", operator="rmsnorm_backward", backend="cuda", source=source, idea="")
    assert not worst("rmsnorm_backward", built(broken, TWO_ROWS_OF_FOUR_WARPS), *inputs(torch.float32, 50, 512)) < 2


def test_what_does_not_fit_is_refused():
    """Wider than a block, or not whole vectors: passed over; wider than the config that was asked for: an error that
    names the way out.
    """
    registry = load()
    for operator, widest in (("layernorm_backward", 12288), ("rmsnorm_backward", 16384)):
        kernel = registry.implementation(operator, "cuda_ring")
        answers = [
            isinstance(kernel.accepts({"lead": (4,), "cols": cols}, "bfloat16", {"eps": 1e-5}), Accepted)
            for cols in (widest, widest + 8, 1001)
        ]
        answers += [
            isinstance(kernel.accepts({"lead": (4,), "cols": cols}, "float32", {"eps": 1e-5}), Accepted)
            for cols in (widest // 2, widest // 2 + 4)
        ]
        assert answers == [True, False, False, True, False]
    with pytest.raises(ValueError, match="use another config or implementation"):
        gradients(
            "rmsnorm_backward", ring("rmsnorm_backward", **TWO_ROWS_OF_FOUR_WARPS), *inputs(torch.float32, 2, 2048)
        )


@pytest.mark.parametrize("operator", OPERATORS)
def test_configs_worth_trying(operator):
    """The default is one of them, the three parameters of a shape come together, and a tuned shape fits all widths of
    its class.
    """
    kernel = load().implementation(operator, "cuda_ring")
    axes = {"lead": (4096,), "cols": 3000}
    tried = [
        config.as_dict()
        for config in kernel.configs()
        if isinstance(kernel.allows(config, axes, "bfloat16", 2, {"eps": 1e-5}), Accepted)
    ]
    assert (
        kernel.default.as_dict() == BY_WIDTH and BY_WIDTH in tried and {"VECS": 2, "STAGES": 3, "THREADS": 512} in tried
    )
    for shape in tried:
        assert len({value == 0 for value in shape.values()}) == 1
        assert shape == BY_WIDTH or 16 * shape["VECS"] * shape["THREADS"] >= 4096 * 2
