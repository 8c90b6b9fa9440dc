"""A worker reads its toolchain and what its kernel's hash covers: a file beside the kernel decides nothing."""

from __future__ import annotations

import shutil

import pytest

from opforge.backends.shared_code import files_of
from opforge.core.evidence.verdict import Broken, Mismatch, Pass
from opforge.registry import load
from opforge.runner import Isolated
from opforge.verify import CaseCache, verify
from opforge.verify.cases.hidden import EXACT

KERNELS = ("torch_plain", "torch_beside", "torch_module", "cpp_header", "cpp_beside")
DEFINITION = """
from opforge.core.operator import Case, Operator, TensorSpec, Tolerance
operator = Operator(
    name="twice", about="2 x",
    inputs=(TensorSpec(name="x", shape="*shape"),), outputs=(TensorSpec(name="y", shape="*shape"),),
    reference=lambda x: 2 * x, flops="prod(shape)", dtypes=("float32",), tolerance=Tolerance(),
    cases=(Case(name="plain", axes={"shape": (7, 9)}, why="plain"),),
    implementations=("torch_plain", "torch_beside", "torch_module", "cpp_header", "cpp_beside"),
)
"""
FILES = {
    "torch_plain.py": "def run(x):\n    return x * 2\n",
    "torch_beside.py": "from pathlib import Path\n\ndef run(x):\n"
    "    return x * float(Path(__file__).with_name('factor.txt').read_text())\n",
    "torch_module.py": "import sys\nfrom pathlib import Path\n\nsys.path.insert(0, str(Path(__file__).parent))\n\n"
    "def run(x):\n    import factor_module\n\n    return x * factor_module.F\n",
    "factor.txt": "2.0",
    "factor_module.py": "F = 2.0\n",
    "factor.h": "#pragma once\nconstexpr float kFactor = 2.0f;\n",
}
CPP = """// {what}
#include <cstdio>
#include "opforge/elementwise/host.h"
#include "factor.h"
namespace {{
void guest(opforge::TensorView x, opforge::TensorView y) {{
  float factor = {factor};
  if (std::FILE* file = {opened}) {{
    if (std::fscanf(file, "%f", &factor) != 1) factor = 0.0f;
    std::fclose(file);
  }}
  for (int64_t i = 0; i < x.numel(); ++i) opforge::data<float>(y)[i] = factor * opforge::data<float>(x)[i];
}}
}}  // namespace
OPFORGE_EXPORT(run, guest)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """An operator whose kernels read what lies beside them."""
    folder = tmp_path_factory.mktemp("covered") / "twice"
    folder.mkdir()
    for name, text in {"op.py": DEFINITION, **FILES}.items():
        (folder / name).write_text(text)
    beside = f'std::fopen("{folder / "factor.txt"}", "r")'
    (folder / "cpp_header.cpp").write_text(CPP.format(what="of a header", factor="kFactor", opened="nullptr"))
    (folder / "cpp_beside.cpp").write_text(CPP.format(what="of a file", factor="1.0f", opened=beside))
    return folder.parent


@pytest.mark.first_only
@pytest.mark.parametrize("level", ["full", "basic"])
def test_what_lies_beside_a_kernel_is_not_read(home, monkeypatch, level):
    """With Landlock, and with mounts alone where there is an accelerator. It could be changed after verification, and
    no hash would say so: bench said Pass.
    """
    monkeypatch.setenv("OPFORGE_ISOLATION", level)
    registry = load([home])
    names = [name for name in KERNELS if not name.startswith("cpp") or shutil.which("g++")]
    with Isolated() as host:
        bench = CaseCache(
            registry=registry, operator=registry.operator("twice"), host=host, device="cpu", run_limit_s=20
        )
        found = {name: verify(bench, registry.implementation("twice", name), "float32", effort=EXACT) for name in names}
        bench.close()
        confined = "read-only" in host.isolation or "Landlock" in host.isolation
    if not confined:
        pytest.skip("this system allows neither Landlock nor mounts")
    for name in {"torch_plain", "cpp_header"} & set(names):
        assert isinstance(found[name], Pass), found[name]
    assert isinstance(found["torch_beside"], Broken) and "nothing beside them" in found["torch_beside"].reason
    assert isinstance(found["torch_module"], Broken) and "a module beside the kernel" in found["torch_module"].reason
    assert "cpp_beside" not in names or isinstance(found["cpp_beside"], Mismatch)


def test_the_files_of_a_kernel_are_those_that_its_hash_covers(home):
    """Its own, and what it includes by name in quotes; opforge's headers in angle brackets too."""
    folder = home / "twice"
    files = files_of(folder / "cpp_header.cpp")
    assert files[0] == folder / "cpp_header.cpp" and folder / "factor.h" in files
    assert folder / "factor.txt" not in files
    (folder / "cpp_angle.cpp").write_text("#include <opforge/ffi.h>\n")
    assert [path.name for path in files_of(folder / "cpp_angle.cpp")][1] == "ffi.h"
