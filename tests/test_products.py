"""The matrix products for GPUs that are not here: what the compilers make of them, and which operands are read as they
lie.
"""

import pytest

from opforge.backends.module_loading import installed, load_source
from opforge.core.definition.implementation import Accepted, Config
from opforge.core.language.errors import EnvironmentLacks
from opforge.inspect import inspect_implementation
from opforge.registry import load

pytestmark = pytest.mark.skipif(not installed("triton"), reason="needs Triton: pip install triton==3.6.0")

ROLES = [
    ("matmul", "triton_gluon", "bfloat16", "HGMMA"),
    ("matmul", "triton_bf16x6", "float32", "HGMMA"),
    ("matmul", "triton_tf32", "float32", "HGMMA"),
    ("linear", "triton_gluon", "float16", "HGMMA"),
    ("matmul_fp8", "triton_gluon", "float8_e4m3fn", "QGMMA"),
]
ROWS = {"rows": (512,), "n": 512, "k": 512}
LARGE = {
    "matmul": {"m": 512, "n": 512, "k": 512},
    "linear": ROWS,
    "linear_add": ROWS,
    "linear_fp8": ROWS,
    "matmul_fp8": {"m": 512, "n": 512, "k": 512},
}


@pytest.mark.parametrize(
    ("operator", "name", "dtype", "instruction"), ROLES, ids=[f"{operator}-{name}" for operator, name, _, _ in ROLES]
)
@pytest.mark.offline
def test_specialised_kernels_use_wgmma_and_spill_nothing(operator, name, dtype, instruction):
    """Sums that leave the registers, or products the assembler serializes, are a silent loss of half the rate
    and more.
    """
    scalars = {"precision": "tf32"} if name == "triton_tf32" else {}
    found = inspect_implementation(
        load(), operator, name, target="sm_90a", dtype=dtype, axes=LARGE[operator], scalars=scalars
    )
    kernel = next(kernel for kernel in found.kernels if kernel.matrix_instructions)
    assert kernel.matrix_instructions[instruction] > 0
    assert kernel.spill_store_bytes == 0 and not kernel.spills
    assert kernel.warnings == ()
    # one warp that loads beside two warpgroups that multiply, padded to a third
    assert kernel.threads == 384
    assert found.compile_s < 60


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "gfx942"])
@pytest.mark.parametrize("name", ["triton_naive", "triton_tiled", "triton_gemv"])
@pytest.mark.offline
def test_portable_rungs_compile_for_every_target(name, target):
    """They promise no more of a GPU than Triton does."""
    axes = {"m": 1 if name == "triton_gemv" else 512, "n": 512, "k": 512}
    assert inspect_implementation(load(), "matmul", name, target=target, dtype="float16", axes=axes).kernels


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        ("matmul", "triton_pipelined"),
        ("matmul", "triton_splitk"),
        ("linear", "triton_pipelined"),
        ("linear_add", "triton_pipelined"),
        ("linear_fp8", "triton_pipelined"),
    ],
)
@pytest.mark.offline
def test_pipelined_rungs_are_fed_by_tma(operator, name):
    """Without descriptors the loads go through registers, and the file's idea is gone."""
    axes = {**LARGE[operator], **({"m": 64} if name == "triton_splitk" else {})}
    (kernel,) = inspect_implementation(load(), operator, name, target="sm_90", dtype="bfloat16", axes=axes).kernels
    assert kernel.other_instructions["UTMALDG"] > 0
    assert kernel.matrix_instructions["HGMMA"] > 0
    assert not kernel.spills


def test_few_rows_get_the_tiles_that_were_fastest():
    """They hung on the hash of a file in tuned/, and a change of shared code put 16 rows back to 47 us."""
    implementation = load().implementation("matmul", "triton_splitk")
    by_shape = load_source(implementation.source).by_shape
    assert by_shape(16, 8192, 8192, 2, 132) == (16, 64, 256, 1, True, 4, 6)
    assert by_shape(64, 8192, 8192, 2, 132) == (64, 64, 256, 1, False, 4, 6)
    assert by_shape(128, 8192, 28672, 2, 132) == (128, 64, 128, 1, False, 4, 8)
    assert by_shape(128, 28672, 8192, 2, 132) == (128, 128, 128, 1, False, 8, 6)
    # float32, a device half empty, and more rows than were measured
    assert (
        by_shape(128, 8192, 28672, 4, 132)
        == by_shape(64, 4096, 8192, 2, 132)
        == by_shape(200, 8192, 8192, 2, 132)
        == (64, 64, 128, 2, False, 4, 5)
    )
    # where few columns leave the device idle, more parts; but none without terms
    assert [by_shape(1, n, 8192, 2, 132)[3] for n in (4096, 2048, 1024, 64)] == [1, 2, 4, 8]
    assert by_shape(1, 64, 256, 2, 132)[3] == 2
    names = ("BLOCK_M", "BLOCK_N", "BLOCK_K_BYTES", "SPLIT", "SWAP", "num_warps", "num_stages")
    for m, n, k in ((16, 8192, 8192), (64, 8192, 8192), (128, 8192, 28672), (128, 28672, 8192)):
        chosen = Config(tuple(zip(names, by_shape(m, n, k, 2, 132), strict=True)))
        for config in (chosen, implementation.default):
            assert isinstance(implementation.allows(config, {"m": m, "n": n, "k": k}, "bfloat16", 2, {}), Accepted), (
                config
            )


def test_large_products_get_large_tiles_and_small_ones_fill_the_device():
    """One tile for all sizes is a fifth too slow for the large products, or leaves three of four multiprocessors idle
    in the small ones.
    """
    import torch

    from opforge.device.tile_choice import WEIGHTS_OF_ROLES, least_work
    from opforge.device.triton.gemm import RING, TILES, lined_up, ring_by_shape, tile_by_shape
    from opforge.device.triton.roles import RINGS

    assert [least_work(size, size, 132, RING) for size in (8192, 4096, 2048, 1024)] == [(128, 256)] * 3 + [(64, 128)]
    assert least_work(2048, 2048, 132, RINGS, weights=WEIGHTS_OF_ROLES) == (128, 128), (
        "with roles one tile's store runs under the next one's products"
    )
    assert least_work(512, 768, 132, RING) == (64, 64)
    assert least_work(64, 64, 132, TILES, batch=4096) == (64, 64), (
        "a batch of small matrices has no use for tiles beyond them"
    )
    assert ring_by_shape(4096, 4096, 2, "ieee", True, False, 132, 232448)[:4] == (128, 256, 128, True)
    assert ring_by_shape(4096, 4096, 2, "ieee", True, False, 132, 101376)[:2] != (128, 256), (
        "it would not start on a device with less shared memory"
    )
    assert ring_by_shape(4096, 4096, 2, "ieee", False, False, 132, 232448)[:2] == (128, 128), (
        "addresses, masks and an epilogue of 256 columns spill"
    )
    assert ring_by_shape(4096, 4096, 2, "ieee", False, True, 132, 232448)[:2] == (128, 256), (
        "0.935 of cuBLAS at 4097 x 4095 x 4093, 128 x 128 0.903"
    )

    def matrices(m, n, k, dtype=torch.bfloat16):
        return (torch.empty(shape, dtype=dtype, device="meta") for shape in ((m, k), (k, n), (m, n)))

    assert tile_by_shape(*matrices(4096, 4096, 4096))[:2] == (128, 256)
    assert tile_by_shape(*(matrix[None] for matrix in matrices(4096, 4095, 4096)))[:2] == (128, 128), (
        "a batch, element by element"
    )
    assert tile_by_shape(*matrices(4096, 4096, 4096, torch.float32))[:2] == (128, 128)
    assert lined_up(torch.zeros(3, 64, 5, dtype=torch.bfloat16).mT[:, :, :48]) is False, (
        "a stride between matrices that is no multiple of 16"
    )
    assert lined_up(torch.zeros(7, 48, dtype=torch.bfloat16)) and lined_up(torch.zeros(7, 48, dtype=torch.bfloat16).T)
    assert not lined_up(torch.zeros(7, 40, dtype=torch.bfloat16)) and not lined_up(
        torch.zeros(8, 96, dtype=torch.bfloat16)[:, ::2]
    )


@pytest.mark.parametrize("m", [48, 512, 1024, 2048, 4096])
def test_what_a_shape_chooses_is_within_the_limits(m):
    """A tuner that is told a limit, and a default that breaks it, would disagree about what can run."""
    from opforge.device.tile_choice import WEIGHTS_OF_ROLES, least_work
    from opforge.device.triton.gemm import TILES, ring_by_shape
    from opforge.device.triton.roles import RINGS

    names = ("BLOCK_M", "BLOCK_N", "BLOCK_K_BYTES", "PERSISTENT", "PARTS", "num_warps", "num_stages")
    tile, roles = least_work(m, m, 132, TILES), least_work(m, m, 132, RINGS, weights=WEIGHTS_OF_ROLES)
    pointers = {
        **dict(zip(names[:2], tile, strict=True)),
        "BLOCK_K_BYTES": 128,
        **dict(zip(names[5:], TILES[tile], strict=True)),
    }
    ring = dict(zip(names, ring_by_shape(m, m, 2, "ieee", True, False, 132, 232448), strict=True))
    specialised = {"BLOCK_N": roles[1], "STAGES": RINGS[roles][0], "PARTS": RINGS[roles][1]}
    square = {"m": m, "n": m, "k": m}
    layer = {"rows": (m,), "n": m, "k": m}
    for operator, name, axes, chosen in (
        ("matmul", "triton_tiled", square, pointers),
        ("batched_matmul", "triton_tiled", {**square, "batch": (1,)}, pointers),
        ("matmul", "triton_pipelined", square, ring),
        ("linear", "triton_pipelined", layer, ring),
        ("linear_add", "triton_pipelined", layer, ring),
        ("linear_fp8", "triton_pipelined", layer, ring),
        ("matmul", "triton_gluon", square, specialised),
        ("linear", "triton_gluon", layer, specialised),
    ):
        implementation = load().implementation(operator, name)
        default = implementation.default
        for config in (default, Config(tuple({**default.as_dict(), **chosen}.items()))):
            assert isinstance(implementation.allows(config, axes, "bfloat16", 2, {}), Accepted), (
                operator,
                name,
                config,
            )


def test_a_specialised_kernel_is_refused_elsewhere_with_a_reason():
    """Its instructions exist on one architecture; the refusal says which, and what can be done instead."""
    with pytest.raises(EnvironmentLacks, match=r"needs sm_90a.*opforge inspect"):
        inspect_implementation(load(), "matmul", "triton_gluon", target="sm_80", dtype="bfloat16", axes=LARGE["matmul"])


def test_operands_are_read_as_they_lie():
    """Row- and column-major matrices are walked without a copy; what TMA cannot walk is told apart by stride and
    address, not by shape alone.
    """
    import torch

    from opforge.device.triton.gemm import how

    matrix = torch.zeros(64, 72, dtype=torch.bfloat16)
    assert how(matrix) == "rows"
    assert how(matrix.T) == "columns"
    assert how(matrix[:, :40]) == "rows"
    assert how(torch.zeros(64, 71, dtype=torch.bfloat16)) == "pointers"
    assert how(torch.zeros(64 * 72 + 1, dtype=torch.bfloat16)[1:].view(64, 72)) == "pointers"
    assert how(matrix[:, ::2]) == "pointers"
    assert how(torch.zeros(1, 72, dtype=torch.bfloat16).expand(64, 72)) == "pointers"
