"""The roles of gemm/wgmma/ without wgmma: tiles, clusters, barriers and boxes in the CPU emulator, with a stand-in for
Hopper's instructions.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from opforge.backends import native
from opforge.backends.cuda import EMULATOR_FLAGS
from opforge.registry.discovery import PACKAGE_HOME

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs a C++ compiler: apt-get install g++"),
]

HEADERS = sorted((PACKAGE_HOME.parent / "device" / "include" / "opforge" / "gemm" / "wgmma").glob("*.h"))
# between the parts of what is changed as one text
BETWEEN = "\n// ---- next header\n"
# three clusters run at once, so that blocks stay for several tiles
CLUSTERS = 3
LAUNCH = f"""  const int64_t clusters = std::min<int64_t>(blocks_for<S>(c, cluster_swapped) / S::kCluster, {CLUSTERS});
  OPFORGE_LAUNCH_CLUSTERS(kernel, clusters, S::kCluster, kThreads, S::kSharedBytes + 1024, stream, arguments...);
"""
PLAIN = f"const unsigned grid = {CLUSTERS} * Wide::kCluster;"


def replaced(text: str, *changes: tuple[str, str, int]) -> str:
    """The text with each pattern replaced as often as it has to stand there."""
    for pattern, new, times in changes:
        text, found = re.subn(
            pattern, lambda match, new=new: match.expand(new) if "\\1" in new else new, text, flags=re.DOTALL
        )
        assert found == times, pattern
    return text


def emulated(folder: Path, operator: str, change: tuple[str, str] | None = None, **config: int):
    """The kernel of an operator for bfloat16 or E4M3, built for the emulator; `change` plants a bug in the header."""
    header = BETWEEN.join(path.read_text() for path in HEADERS)
    if change is not None:
        assert header.count(change[0]) == 1, "the place to change must be found"
        header = header.replace(*change)
    header = replaced(
        header,
        (r"__cluster_dims__\(S::kCluster, 1, 1\) ", "", 1),
        (
            r"  extern __shared__ unsigned char raw\[\];",
            "  OPFORGE_DYNAMIC_SHARED(unsigned char, raw);\n  hopper::begin_block();",
            2,
        ),
        (
            r"  static std::atomic<int> known\[64\];.*?return known\[device % 64\] = clusters;\n",
            f"  return {CLUSTERS};\n",
            1,
        ),
        (
            r"  cudaLaunchConfig_t config = \{\};\n  config\.gridDim = grid_for.*?arguments\.\.\.\), name\);\n",
            LAUNCH,
            1,
        ),
        (r"const unsigned grid = grid_for<Wide, kernel>\(c\);", PLAIN, 1),
        (
            r"kernel<<<grid, kThreads, Wide::kSharedBytes, stream>>>\((.*?)\);\n    return check_cuda\(.*?\);",
            r"OPFORGE_LAUNCH((kernel), grid, kThreads, Wide::kSharedBytes + 1024, stream, \1);\n    return;",
            1,
        ),
        (
            r"Wide::kCluster \* static_cast<int64_t>\(clusters_together<Wide, any>\(\)\)",
            f"Wide::kCluster * {CLUSTERS}",
            1,
        ),
    )
    source = PACKAGE_HOME / "gemm" / operator / "cuda_wgmma.cu"
    text = source.read_text()
    if operator == "matmul_fp8":
        first, last = text.index("  const auto stored_as = [&]"), text.index("}  // namespace\n\nOPFORGE_EXPORT")
        text = (
            text[:first] + "  product_of<opforge::float8_e4m3_t, opforge::bfloat16_t>(call, stream);\n}\n" + text[last:]
        )
    else:
        text = replaced(
            text, (r"OPFORGE_DISPATCH_16_BITS\(left, T, (.*?)\);\n", r"{ using T = opforge::bfloat16_t; \1; }\n", 1)
        )
    for name in ("arch", "gemm/wgmma"):
        (folder / "opforge" / name).mkdir(parents=True)
    for path, part in zip(HEADERS, header.split(BETWEEN), strict=True):
        (folder / "opforge" / "gemm" / "wgmma" / path.name).write_text(part)
    (folder / "opforge" / "arch" / "hopper.h").write_text(
        (Path(__file__).parent / "emulated" / "opforge" / "arch" / "hopper.h").read_text()
    )
    (folder / "kernel.cu").write_text(text)
    definitions = [f"-D{name}={value}" for name, value in config.items()]
    command = [
        "g++",
        *EMULATOR_FLAGS,
        "-O1",
        *definitions,
        f"-I{folder}",
        *native.includes_of(source),
        str(folder / "kernel.cu"),
        "-o",
        str(folder / "kernel.so"),
    ]
    subprocess.run([*command, *native.ffi_flags()[1]], check=True, capture_output=True)
    return native.entry_point(folder / "kernel.so")


def inside(rows: int, cols: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix within a larger one full of NaN."""
    whole = torch.full((rows + 2, (cols + 7) // 8 * 8 + 16), float("nan"), dtype=torch.bfloat16)
    return whole, whole[1 : 1 + rows, 8 : 8 + cols]


def is_right(whole: torch.Tensor, y: torch.Tensor, want: torch.Tensor, size: torch.Tensor) -> bool:
    """Within a rounding and what sums in float32 lose, and nothing written beyond an edge."""
    margin = whole.isnan()
    margin[1 : 1 + y.shape[0], 8 : 8 + y.shape[1]] = True
    return bool(margin.all()) and bool(((y.double() - want).abs() <= 2.0**-8 * want.abs() + 2e-6 * size).all())


def product_is_right(kernel, m: int, n: int, k: int, *, columns: bool) -> bool:
    a, b = torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()
    whole, y = inside(m, n)
    kernel(a, b.T.contiguous().T if columns else b, y, 0)
    return is_right(whole, y, a.double() @ b.double(), a.double().abs() @ b.double().abs())


# the last two have an odd number of rows of tiles: pairs of blocks lie along n there
SHAPES = ((127, 168, 72), (256, 904, 136), (384, 320, 136), (384, 392, 72))
WIDTH_160 = {"BLOCK_N": 160, "STAGES": 5, "OUT_BOXES": 1, "NARROW": 0}
WIDTH_192 = {"BLOCK_N": 192, "STAGES": 5, "OUT_BOXES": 1, "NARROW": 0}


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("config", [pytest.param(WIDTH_160, id="160"), pytest.param(WIDTH_192, id="192")])
def test_pairs_of_blocks_load_for_each_other_what_they_multiply(tmp_path, config, columns):
    """Halves of 80 and 96 columns, or of the terms of three boxes; a last box of 32 columns; clusters either
    way round.
    """
    kernel = emulated(tmp_path, "matmul", **config)
    assert all(product_is_right(kernel, *shape, columns=columns) for shape in SHAPES)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            ("first_term = OfB::kByTerms ? tile_scheduler.row_in_cluster * OfB::kRows : 0;", "first_term = 0;"),
            id="both blocks load the same terms",
        ),
        pytest.param(
            ("row_bytes == 64 ? piece ^ row / 2 % 4", "row_bytes == 64 ? piece ^ row % 4"), id="a short row's swizzle"
        ),
        pytest.param(
            ("col_in_cluster(static_cast<int>(blockIdx.x) % S::kCluster / cluster_m)", "col_in_cluster(0)"),
            id="a swapped pair at one tile",
        ),
    ],
)
def test_a_planted_bug_in_the_roles_is_found_without_a_gpu(tmp_path, change):
    """Each compiles; what is wrong are some elements, or a barrier that is never complete."""
    kernel = emulated(tmp_path, "matmul", change, **WIDTH_160)
    try:
        right = all(product_is_right(kernel, *shape, columns=False) for shape in SHAPES)
    except RuntimeError:
        right = False
    assert not right


def test_a_residual_meets_sums_of_half_a_box(tmp_path):
    """It comes through the pipeline in whole boxes of 64 columns, of a tile of two and a half."""
    kernel = emulated(tmp_path, "linear_add", **WIDTH_160)
    for rows, n, k in SHAPES:
        x, w, bias, residual = (
            torch.randn(rows, k).bfloat16(),
            torch.randn(n, k).bfloat16(),
            torch.randn(n).bfloat16(),
            torch.randn(rows, n).bfloat16(),
        )
        whole, y = inside(rows, n)
        kernel(x, w, bias, residual, y, 0)
        want = x.double() @ w.double().T + bias.double() + residual.double()
        assert is_right(
            whole, y, want, x.double().abs() @ w.double().abs().T + bias.double().abs() + residual.double().abs()
        )


@pytest.mark.parametrize("schedule", [0, 2, 3], ids=["serial", "split n", "ping-pong"])
def test_sums_of_128_terms_meet_the_scales_of_their_blocks(tmp_path, schedule):
    """192 columns, by every schedule of products and sums: a second half takes the scale of its own columns, and no
    turn is lost.
    """
    config = {"BLOCK_N": 192, "STAGES": 4, "AHEAD": schedule, "LEAD": 1 if schedule == 2 else 0, "WIDER": 0}
    kernel = emulated(tmp_path, "matmul_fp8", **config)
    for m, n, k in ((127, 168, 144), (384, 1000, 272), (257, 640, 1040)):
        a, b = (torch.randn(rows, k).to(torch.float8_e4m3fn) for rows in (m, n))
        scale_a, scale_b = torch.rand(m, -(-k // 128)) + 0.5, torch.rand(-(-n // 128), -(-k // 128)) + 0.5
        left = a.float().double() * scale_a.repeat_interleave(128, 1)[:, :k].double()
        right = b.float().double() * scale_b.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k].double()
        whole, y = inside(m, n)
        kernel(a, b, scale_a, scale_b, y, 2, 0, 0)
        assert is_right(whole, y, left @ right.T, left.abs() @ right.abs().T)
