"""AscendC on request: TileLang lowers it here; its arithmetic is run on a CPU, by a stand-in for CANN's headers."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from opforge.core.language.errors import UsageError
from opforge.forge import files_of, from_formula, generate, read_definition
from opforge.forge.program.evaluate import evaluate
from opforge.registry import load

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / "examples" / "definitions"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
CORES = 64
ASKED_IN_CI = ("drawdown",)


def definition(name):
    return read_definition(FOLDER / f"{name}.yaml", name)


def lowered(folder, name, dtype):
    """The AscendC that the generated file prints, in a process of its own as a user would ask it."""
    command = [sys.executable, str(folder / name / f"{name}_ascendc.py"), "--dtype", dtype]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def run(text, name, tensors, sizes, tmp_path):
    """The kernel on CPU tensors: arguments by the names in its signature, one core after another."""
    (tmp_path / "kernel.cpp").write_text(f"{text}\nIndex threadIdx;\nint block_idx;\n")
    library = tmp_path / "kernel.so"
    command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", f"-I{HERE / 'ascend_stand_in'}"]
    done = subprocess.run([*command, str(tmp_path / "kernel.cpp"), "-o", str(library)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    loaded = ctypes.CDLL(str(library))
    signature = re.search(rf"__vector__ void {name}_kernel\((.*?)\)", text)[1]
    arguments = []
    for word in signature.split(","):
        argument = word.split()[-1]
        is_size = "*" not in word
        value = ctypes.c_int64(sizes[argument]) if is_size else ctypes.c_void_p(tensors[argument].data_ptr())
        arguments.append(value)
    block = ctypes.c_int.in_dll(loaded, "block_idx")
    for core in range(CORES):
        block.value = core
        getattr(loaded, f"{name}_kernel")(*arguments)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.campaign if name in ASKED_IN_CI else pytest.mark.slow) for name in NAMES],
)
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here: apt install g++")
def test_ascendc_of_every_family_computes_what_the_formula_says(name, tmp_path):
    """float32, float16 but for CI's, odd sizes. Nothing here has run on an NPU, or through bisheng."""
    generate(load(), definition(name), tmp_path, backends=("ascendc",))
    one = definition(name)
    program = one.program()
    kinds = ((torch.float32, 1e-4), (torch.float16, 1e-2))
    # lowering takes some seconds for each
    for dtype, close in kinds[: 1 if name in ASKED_IN_CI else 2]:
        torch.manual_seed(0)
        sizes = {
            axis: 3 + 2 * at for at, axis in enumerate(dict.fromkeys(a for _, axes in program.reads for a in axes))
        }
        tensors = {key: torch.rand([sizes[axis] for axis in axes]).to(dtype) + 0.25 for key, axes in program.reads}
        parameters = dict(program.parameters)
        expected = evaluate(program, {key: value.double() for key, value in tensors.items()}, parameters)
        outputs = {key: torch.full(value.shape, float("nan"), dtype=dtype) for key, value in expected.items()}
        text = lowered(tmp_path, name, str(dtype).removeprefix("torch."))
        named = {f"n_{axis.lstrip('*')}": size for axis, size in sizes.items()}
        # a library that is loaded is not written over
        (tmp_path / str(dtype)).mkdir()
        run(text, name, {**tensors, **outputs}, named, tmp_path / str(dtype))
        for key, value in expected.items():
            torch.testing.assert_close(outputs[key].double(), value.double(), rtol=close, atol=close)


def test_a_name_of_the_kernels_own_is_refused():
    with pytest.raises(UsageError, match="means something in AscendC"):
        files_of(from_formula("made", "y = core[*lead, cols] * 2"), backends=("ascendc",))
