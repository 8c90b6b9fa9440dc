"""Code that operators share: its hash, and what a kernel file takes from it by name."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from opforge.backends import native, shared_code
from opforge.backends.cache import sha256_of
from opforge.backends.module_loading import load_source
from opforge.backends.shared_code import code_of, headers_of, modules_of, package_of, source_sha256
from opforge.core.language.errors import UsageError
from opforge.registry import load
from opforge.registry.implementation_files import read_implementation
from opforge.workbench.sides import folder_at

PACKAGE = Path(shared_code.__file__).resolve().parent.parent


@pytest.fixture
def package(tmp_path):
    """A copy of opforge's shared code, and of a few operators, that a test may change."""
    copy = tmp_path / "opforge"
    for folder in ("backends", "core", "device", "ops/rows/softmax", "ops/elementwise/dropout", "ops/norm/layernorm"):
        shutil.copytree(PACKAGE / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "built"))
    return copy


@pytest.mark.parametrize(
    ("kernel", "shared"),
    [
        ("rows/softmax/triton_online.py", "device/triton/online.py"),
        ("rows/softmax/tilelang_onepass.py", "device/tilelang/tools.py"),
        ("elementwise/dropout/triton_blocks.py", "core/philox.py"),
        ("rows/softmax/cuda_onchip.cu", "device/include/opforge/rows/onchip.h"),
        ("norm/layernorm/cpp_twopass.cpp", "device/include/opforge/numeric/half.h"),
    ],
)
def test_an_implementation_is_another_one_once_code_that_it_shares_has_changed(package, kernel, shared):
    """Else a record would speak for a kernel that was never measured. Some are reached through another shared file
    only.
    """
    source = package / "ops" / kernel
    before = source_sha256(source)
    assert before == source_sha256(PACKAGE / "ops" / kernel), "the same in every installation"
    with (package / shared).open("a", encoding="utf-8") as file:
        file.write("\n")
    assert source_sha256(source) != before


def test_code_is_read_again_only_when_a_file_of_it_has_changed(package, monkeypatch):
    """Every new shape in a model asks for it. A header of the same size, its times set back, is another header all the
    same.
    """
    source, header = (
        package / "ops" / "norm" / "layernorm" / "cpp_twopass.cpp",
        package / "device" / "include" / "opforge" / "numeric" / "half.h",
    )
    fresh = code_of(source)
    assert source not in shared_code._known, "two versions within a tick of the clock have the same times"
    monkeypatch.setattr(shared_code, "SETTLED_NS", -(10**18))
    assert code_of(source) == fresh
    with monkeypatch.context() as kept:
        kept.setattr(shared_code, "headers_of", None)
        assert code_of(source) is code_of(source)
    times = header.stat()
    while header.stat().st_ctime_ns == times.st_ctime_ns:
        header.write_bytes(header.read_bytes().replace(b"to nearest even", b"to nearest odd "))
    os.utime(header, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert (
        code_of(source).shared["opforge/numeric/half.h"] == sha256_of(header) != fresh.shared["opforge/numeric/half.h"]
    )
    (source.parent / "opforge" / "rows").mkdir(parents=True)
    (source.parent / "opforge" / "rows" / "host.h").write_text("")
    assert "opforge/numeric/half.h" not in code_of(source).shared, (
        "what lies beside a kernel goes before what its package has"
    )
    del shared_code._known[source]


def test_what_a_kernel_does_not_reach_does_not_change_its_hash(package):
    """Else every record would be stale after every change."""
    sources = [
        package / "ops" / "rows" / "softmax" / name for name in ("triton_online.py", "cuda_onchip.cu", "torch_eager.py")
    ]
    before = [source_sha256(source) for source in sources]
    for name in ("device/triton/transpose.py", "backends/native.py", "device/include/opforge/layout/permute_device.h"):
        (package / name).write_text("", encoding="utf-8")
    assert [source_sha256(source) for source in sources] == before


def test_a_kernel_that_stands_alone_has_the_hash_of_its_file():
    """Records of such kernels from before there was shared code stay valid."""
    source = PACKAGE / "ops" / "rows" / "softmax" / "torch_eager.py"
    assert modules_of(source) == {}
    assert source_sha256(source) == sha256_of(source)


def test_shared_device_code_reaches_no_room():
    """A kernel that reached the workbench would be another kernel after every change to a report."""
    homes = {"backends", "core", "device"}
    for registry in [load()]:
        for name in registry.names():
            for implementation in registry.implementations(name):
                source = implementation.source
                reached = modules_of(source) if source.suffix == ".py" else headers_of(source)
                rooms = {
                    path.relative_to(PACKAGE).parts[0] for path in reached.values() if path.is_relative_to(PACKAGE)
                }
                assert rooms <= homes | {"ops"}, f"{source}: {sorted(reached)}"


def read(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return read_implementation("imagined", tmp_path, name.split(".")[0])


def test_a_kernel_takes_the_space_of_a_shared_launcher_by_name(tmp_path):
    """And says itself what is its own: a default may differ from operator to operator."""
    found = read(
        tmp_path,
        "triton_blocks.py",
        'from opforge.device.triton.blocks import LIMITS as LIMITS, SPACE as SPACE\n\nDEFAULT = {"BLOCK": 2048, '
        '"num_warps": 8}\n',
    )
    assert found.space["BLOCK"] == (512, 1024, 2048, 4096)
    assert set(found.limits) == {"every_thread_has_a_vector", "fits_registers"}
    assert found.default.as_dict() == {"BLOCK": 2048, "num_warps": 8}


def test_a_native_kernel_takes_what_a_header_says_and_its_own_word_goes_before(tmp_path):
    """The limit of cross-entropy speaks of classes where the header speaks of columns."""
    found = read(
        tmp_path,
        "cuda_onchip.cu",
        '// idea\n/* opforge\nlike = "opforge/rows/onchip.h"\n[limits]\nmine = "classes < 9"\n*/\n',
    )
    assert found.space["VECS"] == (2, 4)
    assert found.default.as_dict()["SLICE"] == 512
    assert dict(found.limits) == {"mine": "classes < 9"}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("triton_x.py", "from opforge.device.triton.online import DEFAULT as DEFAULT\n", "has no literal DEFAULT"),
        ("triton_x.py", "from opforge.backends.nowhere import SPACE as SPACE\n", "has no literal SPACE"),
        ("cuda_x.cu", '/* opforge\nlike = "opforge/nowhere.h"\n*/\n', "no header of opforge"),
    ],
)
def test_what_is_not_there_to_be_taken_is_refused_with_the_next_step(tmp_path, name, text, said):
    """Left out in silence, a kernel would be tuned over nothing."""
    with pytest.raises(UsageError, match=said):
        read(tmp_path, name, text)


def git(folder, *words):
    subprocess.run(
        ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org", *words],
        check=True,
        capture_output=True,
    )


def test_a_revision_is_built_with_its_own_shared_code(package, tmp_path):
    """Else an old kernel meets today's headers: it doesn't compile, or is timed with code that it never had."""
    git(package, "init", "-q")
    git(package, "add", ".")
    git(package, "commit", "-q", "-m", "old")
    header, module = (
        package / "device" / "include" / "opforge" / "rows" / "onchip.h",
        package / "device" / "triton" / "online.py",
    )
    old = header.read_bytes(), module.read_bytes()
    header.write_text("#error this is the new one\n")
    module.write_text("raise RuntimeError('this is the new one')\n")
    folder = folder_at(package / "ops" / "rows" / "softmax", "HEAD", tmp_path / "scratch")
    sources = folder / "cuda_onchip.cu", folder / "triton_online.py"
    assert headers_of(sources[0])["opforge/rows/onchip.h"].read_bytes() == old[0]
    assert modules_of(sources[1])["opforge.device.triton.online"].read_bytes() == old[1]
    assert native.includes_of(sources[0])[0] == f"-I{package_of(folder) / 'device' / 'include'}"
    assert package_of(folder).is_relative_to(tmp_path / "scratch")
    # a home outside any package is made with what runs
    (tmp_path / "mine").mkdir()
    assert package_of(tmp_path / "mine" / "cpp_x.cpp") == PACKAGE


def test_a_python_kernel_of_a_revision_imports_the_revisions_device_code(package):
    """And the next file of this opforge gets this opforge's again."""
    (package / "device" / "triton" / "blocks.py").write_text("WHOSE = 'the revision'\n")
    kernel = package / "ops" / "rows" / "softmax" / "triton_theirs.py"
    kernel.write_text("from opforge.device.triton.blocks import WHOSE\n")
    assert load_source(kernel).WHOSE == "the revision"
    ours = PACKAGE / "ops" / "rows" / "softmax" / "torch_eager.py"
    text = package.parent / "torch_ours.py"
    text.write_text("import opforge.device\n\nPLACE = list(opforge.device.__path__)\n")
    load_source(ours)
    assert load_source(text).PLACE == [str(PACKAGE / "device")]
    assert "opforge.device.triton.blocks" not in sys.modules or not hasattr(
        sys.modules["opforge.device.triton.blocks"], "WHOSE"
    )
