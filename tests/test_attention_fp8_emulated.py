"""cuda_wgmma of attention_fp8 without a GPU: tiles, rings, scales, order of keys and sums in the CPU emulator, with a
stand-in for Hopper's instructions. What it cannot show is a wait that is missing.
"""

import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from opforge.backends import native
from opforge.backends.cuda import EMULATOR_FLAGS
from opforge.registry import load
from opforge.registry.discovery import PACKAGE_HOME

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs a C++ compiler: apt-get install g++"),
]

INCLUDE = PACKAGE_HOME.parent / "device" / "include" / "opforge"
STAND_INS = Path(__file__).parent / "emulated" / "opforge" / "arch"
SOURCE = PACKAGE_HOME / "attention" / "attention_fp8" / "cuda_wgmma.cu"
CONFIG = {"BLOCK_N": 64, "STAGES": 2, "TURNS": 1, "GROUPS": 3, "PROMOTE": 2}


def once(text: str, pattern: str, new: str) -> str:
    """The text with what a GPU alone has replaced, where it has to stand once."""
    text, found = re.subn(pattern, lambda _: new, text, flags=re.DOTALL)
    assert found == 1, pattern
    return text


def emulated(folder: Path, change: tuple[str, str] | None = None, **config: int):
    """The kernel's entry point; `change` plants a bug in the header."""
    for name in ("arch", "attention"):
        (folder / "opforge" / name).mkdir(parents=True)
    for path in STAND_INS.glob("*.h"):
        shutil.copy(path, folder / "opforge" / "arch" / path.name)
    texts = {name: (INCLUDE / "attention" / name).read_text() for name in ("wgmma.h", "wgmma_launch.h")}
    texts |= {name: (INCLUDE / "attention" / name).read_text() for name in ("wgmma_fp8.h", "wgmma_fp8_launch.h")}
    if change is not None:
        assert texts["wgmma_fp8.h"].count(change[0]) == 1, "the place to change must be found"
        texts["wgmma_fp8.h"] = texts["wgmma_fp8.h"].replace(*change)
    texts["wgmma.h"] = once(
        texts["wgmma.h"],
        r'asm volatile\("\{\\n\.reg \.pred inside;.*?"memory"\);',
        "if (i * 32 + lane * 8 < end) std::memcpy(at + i * 32, words, 16);",
    )
    # of the forward pass in 16 bits what the other one takes is kept
    texts["wgmma_launch.h"] = once(
        texts["wgmma_launch.h"],
        r"/// The tensor's rows as the TMA can address them.*?\n};\n.*"
        r"/// Attention of 16-bit tensors\..*\n}  // namespace at",
        "inline int multiprocessors() { return 3; }\n\n}  // namespace at",
    )
    texts["wgmma_fp8_launch.h"] = once(
        texts["wgmma_fp8_launch.h"], r"check_cuda\(cudaMemsetAsync\(.*?\);", "*call.taken = 0;"
    ).replace("S::kThreads, S::kSharedBytes, stream", "S::kThreads, S::kSharedBytes + 1024, stream")
    texts["wgmma_fp8.h"] = once(
        texts["wgmma_fp8.h"],
        r"OPFORGE_DYNAMIC_SHARED\(unsigned char, raw\);",
        "OPFORGE_DYNAMIC_SHARED(unsigned char, raw);\n  hopper::begin_block();",
    )
    for name, text in texts.items():
        (folder / "opforge" / "attention" / name).write_text(text)
    definitions = [f"-D{name}={value}" for name, value in {**CONFIG, **config}.items()]
    command = ["g++", *EMULATOR_FLAGS, "-O1", *definitions, f"-I{folder}", *native.includes_of(SOURCE), "-x", "c++"]
    command += [str(SOURCE), "-o", str(folder / "kernel.so"), *native.ffi_flags()[1]]
    subprocess.run(command, check=True, capture_output=True)
    return native.entry_point(folder / "kernel.so")


def worst(kernel, sizes, seed=1, lengths=False, strided=False, shrunk=0, **asked) -> float:
    """The worst error over what the operator's bound allows, of out and of lse; scales of q and k are smaller by
    2^shrunk.
    """
    operator = load([]).operator("attention_fp8")
    batch, kv_heads, group, queries, keys, head_dim, value_dim = sizes
    generator = torch.Generator().manual_seed(seed)
    scalars = operator.scalar_values(asked)

    def drawn(*shape):
        values = torch.randn(*shape, generator=generator).to(torch.float8_e4m3fn)
        if not strided:
            return values
        return values.transpose(1, 2).contiguous().transpose(1, 2)

    def scale(*shape):
        return torch.rand(*shape, generator=generator) + 0.5

    heads = kv_heads * group
    q, k, v = drawn(batch, heads, queries, head_dim), drawn(batch, kv_heads, keys, head_dim), None
    v = drawn(batch, kv_heads, keys, value_dim)
    parts = [
        math.ceil(n / rows) if rows else 1 for n, rows in ((queries, scalars["q_block"]), (keys, scalars["k_block"]))
    ]
    scales = [scale(batch, heads, parts[0]), scale(batch, kv_heads, parts[1])]
    scales = [tensor * 2.0**-shrunk for tensor in scales]
    scales.append(scale(batch, kv_heads, value_dim if scalars["v_channels"] else 1))
    if strided:
        scales = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in scales]
    given = torch.randint(0, keys + 1, (batch,), generator=generator).int() if lengths else None
    out = torch.full((batch, heads, queries, value_dim), math.nan, dtype=getattr(torch, scalars["out_dtype"]))
    lse = torch.full((batch, heads, queries), math.nan)
    words = {scalar.name: scalar.choices for scalar in operator.scalars}
    values = [words[n].index(x) if isinstance(x, str) else x for n, x in scalars.items() if n in words]
    kernel(q, k, v, *scales, given, out, lse, *values)
    tensors = dict(zip(("q", "k", "v", "q_scale", "k_scale", "v_scale"), (q, k, v, *scales), strict=True))
    inputs = {name: tensor.double() for name, tensor in tensors.items()} | {"key_lengths": given}
    wanted = operator.reference(*inputs.values(), **scalars)
    bounds = operator.tolerance.errors(inputs, {"out": wanted[0], "lse": wanted[1]}, scalars, "float8_e4m3fn")
    found = 0.0
    for made, expected, name in ((out, wanted[0], "out"), (lse, wanted[1], "lse")):
        blind = expected == -math.inf
        if not bool((made.double()[blind] == -math.inf).all()):
            return math.inf
        step = expected.abs() * 2.0**-8 if name == "out" else expected.abs() * 2.0**-23
        share = (made.double() - expected).abs()[~blind] / (bounds[name].largest + step + 1e-30)[~blind]
        found = max(found, float(share.nan_to_num(nan=math.inf).max()) if share.numel() else 0.0)
    return found


BLOCKS = {"q_block": 64, "k_block": 128}
CALLS = {
    "plain": ((1, 2, 1, 200, 300, 64, 64), {}),
    "causal": ((2, 1, 3, 130, 200, 32, 48), {"causal": True, "out_dtype": "float16"}),
    "blocks": ((1, 2, 2, 150, 700, 64, 64), BLOCKS),
    "windows": ((1, 1, 1, 270, 250, 64, 64), {"window_left": 70, "window_right": 9, "alignment": "bottom_right"}),
    "blind rows": ((1, 1, 1, 300, 60, 16, 16), {"causal": True, "alignment": "bottom_right"}),
    "softcap": ((1, 1, 2, 70, 300, 64, 64), {"softcap": 2.0, **BLOCKS, "causal": True}),
    # a fused product less a rounded one leaves 2^-25 of such scores, which no exponential may meet
    "vast scores": ((1, 2, 1, 70, 300, 64, 64), {"scale": 3.0e8, "causal": True, **BLOCKS}),
    "scales that underflow": ((1, 2, 1, 70, 90, 64, 64), {"shrunk": 80, "causal": True}),
    "negative": ((1, 1, 1, 70, 90, 64, 64), {"scale": -0.5}),
    "columns": ((1, 2, 1, 70, 90, 33, 17), {"v_channels": True, "q_block": 17}),
    "lengths": ((5, 1, 1, 70, 200, 64, 64), {"lengths": True, "causal": True}),
    "strided": ((2, 3, 1, 70, 90, 64, 64), {"strided": True, "v_channels": True, "q_block": 32}),
    "wide": ((1, 1, 2, 150, 330, 128, 128), {"causal": True}),
    "two dimensions": ((1, 1, 1, 70, 150, 192, 128), BLOCKS),
}


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    return emulated(tmp_path_factory.mktemp("fp8"))


@pytest.mark.parametrize("name", CALLS)
def test_it_is_within_the_bound_without_a_gpu(kernel, name):
    """Blocks of 64 keys, sums that leave the tensor core after every second one, three blocks that stay for all."""
    sizes, asked = CALLS[name]
    assert worst(kernel, sizes, **asked) < 1


@pytest.mark.parametrize("config", [{"BLOCK_N": 96, "GROUPS": 2}, {"BLOCK_N": 128, "PROMOTE": 4}], ids=["96", "128"])
def test_rows_of_32_and_128_keys_are_found_too(tmp_path, config):
    """A box of transposed values is as wide as divides a block of keys."""
    made = emulated(tmp_path, **config)
    for name in ("plain", "causal", "wide"):
        sizes, asked = CALLS[name]
        assert worst(made, sizes, **asked) < 1


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (("place / 4 * 2 + place % 2", "place % 2 * 2 + place / 4"), "plain"),
        (("block / call.k_blocks * static_cast<int>(call.k_scale_block)", "0"), "blocks"),
        (("fmaxf(factor[r], kLeast)", "factor[r]"), "scales that underflow"),
        (("fabsf(base[1])) > kFused", "fabsf(base[1])) > INFINITY"), "vast scores"),
        (("fmaf(before.z, decay[1], all[2])", "before.z + all[2]"), "blocks"),
    ],
    ids=[
        "order of keys",
        "scale of the first block",
        "no factor",
        "scores multiplied late",
        "sums that are not made to fit",
    ],
)
def test_a_planted_bug_is_found_without_a_gpu(tmp_path, change, name):
    """Each compiles; what is wrong are values."""
    sizes, asked = CALLS[name]
    assert not worst(emulated(tmp_path, change), sizes, **asked) < 1
