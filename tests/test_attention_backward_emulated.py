"""cuda_wgmma and cuda_wgmma_ordered of attention_backward without a GPU: tiles, rings, who adds what where, in the CPU
emulator, with a stand-in for Hopper's instructions. What it cannot show is a wait that is missing.
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
HEADERS = ("wgmma.h", "wgmma_launch.h", "wgmma_backward.h", "wgmma_backward_wide.h", "wgmma_backward_launch.h")
STORED = r'asm volatile\("st\.global\.v4\.u32 \[%0\].*?"memory"\);'
# what a GPU alone has, how often it stands there, and what does the same
CHANGES = {
    "wgmma.h": [
        (
            r'asm volatile\("\{\\n\.reg \.pred inside;.*?"memory"\);',
            1,
            "if (i * 32 + lane * 8 < end) std::memcpy(at + i * 32, words, 16);",
        ),
    ],
    "wgmma_launch.h": [
        (r"gather_rows<T><<<(.*?), 256, 0, stream>>>\(", 1, r"OPFORGE_LAUNCH((gather_rows<T>), \1, 256, 0, stream, "),
        (r'    check_cuda\(cudaGetLastError\(\), "gather_rows"\);\n', 1, ""),
        (r"/// Multiprocessors of the device.*\n}\n\n}  // namespace at", 1, "}  // namespace at"),
    ],
    "wgmma_backward.h": [
        (
            r'asm volatile\("cp\.async\.bulk\.shared.*?"memory"\);',
            1,
            "std::memcpy(target, source, bytes);\n"
            "  opforge::detail::change_barrier(barrier, hopper::this_block(), 0, -bytes);",
        ),
        (r'asm volatile\("" : "=f"\(sums\[i\]\)::"memory"\);', 1, "sums[i] = NAN;"),
        (
            r'asm volatile\("red\.relaxed.*?"memory"\);',
            1,
            "atomicAdd(target, a), atomicAdd(target + 1, b), atomicAdd(target + 2, c), atomicAdd(target + 3, d);",
        ),
        (
            r'asm volatile\("ld\.relaxed\.gpu.*?"memory"\);',
            1,
            "now = *static_cast<const volatile int*>(counter);\n    emu::yield_now();",
        ),
        (r'asm volatile\("st\.relaxed\.gpu.*?"memory"\);', 1, "*counter = turn;"),
        (STORED, 1, "std::memcpy(line + col, words, 16);"),
        (
            r"extern __shared__ unsigned char raw\[\];",
            1,
            "OPFORGE_DYNAMIC_SHARED(unsigned char, raw);\n  hopper::begin_block();",
        ),
    ],
    "wgmma_backward_wide.h": [
        (
            r"extern __shared__ unsigned char raw\[\];",
            1,
            "OPFORGE_DYNAMIC_SHARED(unsigned char, raw);\n  hopper::begin_block();",
        ),
    ],
    "wgmma_backward_launch.h": [
        (
            r"check_cuda\(cudaMemsetAsync\((.*?), (.*?), (.*?), stream\), \"cudaMemsetAsync\"\);",
            2,
            r"std::memset(\1, \2, \3);",
        ),
        (r"  check_cuda\(cudaGetLastError\(\), .*?\);\n", 3, ""),
        (r"  check_cuda\(cudaFuncSetAttribute\(.*?\);\n", 1, ""),
        (r"prepare<<<(.*?), 256, 0, stream>>>\(", 1, r"OPFORGE_LAUNCH(prepare, \1, 256, 0, stream, "),
        (
            r"kernel<<<(.*?), S::kThreads, S::kSharedBytes, stream>>>\(",
            1,
            r"OPFORGE_LAUNCH(kernel, \1, S::kThreads, S::kSharedBytes + 1024, stream, ",
        ),
        (
            r"place_queries<T><<<(.*?), 128, 0, stream>>>\(",
            1,
            r"OPFORGE_LAUNCH((place_queries<T>), \1, 128, 0, stream, ",
        ),
    ],
}


def emulated(folder: Path, name: str, change: tuple[str, str, str] | None = None):
    """The entry point of an implementation; `change` plants a bug in a header: its name, a text and another."""
    for room in ("arch", "attention"):
        (folder / "opforge" / room).mkdir(parents=True)
    for path in STAND_INS.glob("*.h"):
        shutil.copy(path, folder / "opforge" / "arch" / path.name)
    for header in HEADERS:
        text = (INCLUDE / "attention" / header).read_text()
        if change is not None and change[0] == header:
            assert text.count(change[1]) == 1, "the place to change must be found"
            text = text.replace(*change[1:])
        for pattern, times, new in CHANGES[header]:
            text, found = re.subn(pattern, new if "\\1" in new else lambda _, new=new: new, text, flags=re.DOTALL)
            assert found == times, pattern
        (folder / "opforge" / "attention" / header).write_text(text)
    source = PACKAGE_HOME / "attention" / "attention_backward" / f"{name}.cu"
    command = ["g++", *EMULATOR_FLAGS, "-O1", "-DSTAGES=2", f"-I{folder}", *native.includes_of(source), "-x", "c++"]
    command += [str(source), "-o", str(folder / "kernel.so"), *native.ffi_flags()[1]]
    subprocess.run(command, check=True, capture_output=True)
    return native.entry_point(folder / "kernel.so")


def worst(kernel, sizes, lengths=False, slopes=False, **asked) -> float:
    """The worst error over what the operator's bound allows, of dq, dk and dv."""
    operator, forward = (load([]).operator(name) for name in ("attention_backward", "attention"))
    batch, kv_heads, group, queries, keys, head_dim, value_dim = sizes
    make = torch.Generator().manual_seed(1)
    heads = kv_heads * group

    def drawn(*shape):
        return torch.randn(*shape, generator=make).bfloat16()

    q, k, v = drawn(batch, heads, queries, head_dim), drawn(batch, kv_heads, keys, head_dim), None
    v, dout = drawn(batch, kv_heads, keys, value_dim), drawn(batch, heads, queries, value_dim)
    given = torch.randint(0, keys + 1, (batch,), generator=make).int() if lengths else None
    beside = [given, None, None, torch.rand(heads, generator=make) if slopes else None, None]
    scalars = {scalar.name: asked.get(scalar.name, scalar.default) for scalar in operator.scalars}
    wide = [None if t is None else t.double() for t in beside]
    wide[0] = given
    out, lse = forward.reference(q.double(), k.double(), v.double(), *wide, **scalars)
    out, lse, dlse = out.bfloat16(), lse.float(), torch.randn(lse.shape, generator=make)
    made = [torch.full_like(tensor, math.nan) for tensor in (q, k, v)]
    words = {scalar.name: scalar.choices for scalar in operator.scalars}
    values = [words[name].index(x) if isinstance(x, str) else x for name, x in scalars.items()]
    kernel(q, k, v, out, lse, dout, dlse, *beside, *made, *values)
    names = ("q", "k", "v", "out", "lse", "dout", "dlse")
    inputs = {name: t.double() for name, t in zip(names, (q, k, v, out, lse, dout, dlse), strict=True)}
    inputs |= dict(zip(("key_lengths", "bias", "mask", "alibi_slopes", "sinks"), wide, strict=True))
    wanted = operator.reference(*inputs.values(), **scalars)
    bounds = operator.tolerance.errors(inputs, {}, scalars, "bfloat16")
    found = 0.0
    for name, mine, exact in zip(("dq", "dk", "dv"), made, wanted, strict=True):
        share = (mine.double() - exact).abs() / (bounds[name].largest + exact.abs() * 2.0**-8 + 1e-30)
        found = max(found, float(share.nan_to_num(nan=math.inf).max()))
    return found


CALLS = {
    "narrow": ((1, 1, 2, 130, 140, 48, 64), {"causal": True}),
    "128": ((1, 1, 1, 70, 140, 128, 128), {}),
    "256": ((1, 1, 2, 70, 140, 256, 256), {"causal": True, "alignment": "bottom_right"}),
    "192 and 128": ((1, 2, 1, 130, 70, 192, 128), {"window_left": 30, "window_right": 9}),
    "odd dimensions": ((1, 1, 1, 70, 70, 129, 40), {"softcap": 2.0}),
    "lengths and slopes": ((3, 1, 1, 70, 100, 160, 96), {"lengths": True, "slopes": True, "causal": True}),
    "blind rows": ((1, 1, 1, 140, 30, 192, 200), {"causal": True, "alignment": "bottom_right"}),
}


@pytest.fixture(scope="module", params=["cuda_wgmma", "cuda_wgmma_ordered"])
def kernel(request, tmp_path_factory):
    return emulated(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.parametrize("name", CALLS)
def test_it_is_within_the_bound_without_a_gpu(kernel, name):
    sizes, asked = CALLS[name]
    assert worst(kernel, sizes, **asked) < 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(c * 2 + lane / 16) ^ (lane % 8)", "c * 2 + lane / 16"),
        ("if (kSteep) bend = 1.0f - score * score;", ""),
        ("static_cast<int64_t>(first + box) * 4096", "static_cast<int64_t>(first) * 4096"),
    ],
    ids=["slopes that are not swizzled", "no derivative of the cap", "boxes of one place"],
)
def test_a_planted_bug_is_found_without_a_gpu(tmp_path, old, new):
    """Each compiles; what is wrong are values."""
    sizes, asked = CALLS["odd dimensions"]
    assert not worst(emulated(tmp_path, "cuda_wgmma", ("wgmma_backward_wide.h", old, new)), sizes, **asked) < 1
