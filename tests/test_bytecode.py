"""Compiled Python where a toolchain was installed without: made by all processors, once, and given up with the host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from opforge.runner import Isolated, bytecode
from opforge.trial import binding


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A package `planted` that Inductor would import, and the variables that keep its bytecode."""
    for name in ("planted/__init__.py", "planted/deep/one.py", "planted/tests/test_one.py"):
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(bytecode, "INDUCTOR", ("planted", "nowhere"))
    monkeypatch.setattr(bytecode.os, "cpu_count", lambda: 8)
    return {"PYTHONPYCACHEPREFIX": str(tmp_path / "kept"), "PYTHONDONTWRITEBYTECODE": ""}


def test_what_inductor_imports_is_compiled_once_and_its_tests_are_not(kept, tmp_path):
    compilers = bytecode.compile_ahead(kept)
    assert compilers is not None and compilers.wait(60) == 0
    made = {path.name.partition(".")[0] for path in (tmp_path / "kept").rglob("site/**/*.pyc")}
    assert made == {"__init__", "one"}
    assert bytecode.compile_ahead(kept) is None


def test_nothing_is_compiled_where_bytecode_came_with_torch_or_processors_are_few(kept, monkeypatch):
    assert bytecode.compile_ahead({}) is None
    monkeypatch.setattr(bytecode.os, "cpu_count", lambda: 2)
    assert bytecode.compile_ahead(kept) is None


def test_compilers_end_with_their_host():
    """A pool's processes outlive the one that began them."""
    begun = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    host = Isolated()
    host._compilers = subprocess.Popen([sys.executable, "-c", begun], start_new_session=True)
    host.close()
    with pytest.raises(ProcessLookupError):
        os.killpg(host._compilers.pid, 0)


@pytest.mark.parametrize(("device", "gpu", "wanted"), [("", True, True), ("cuda", True, True), ("cpu", True, False),
                                                       ("", False, False)])  # fmt: skip
def test_servers_start_before_torch_is_here_where_a_gpu_would_be_taken(device, gpu, wanted, monkeypatch):
    from opforge.registry import load

    asked: list[str] = []
    implementations = [load().implementation("layernorm", name) for name in ("torch_compile", "cpp_twopass")]
    host = Isolated()
    plain = Path.glob
    there = {"/dev": ["nvidia0"] if gpu else []}
    monkeypatch.setattr(
        Path, "glob", lambda self, pattern: there[str(self)] if str(self) in there else plain(self, pattern)
    )
    monkeypatch.setattr(binding.os, "cpu_count", lambda: 16)
    host = Isolated()
    monkeypatch.setattr(
        host, "ready", lambda environments: asked.extend(one["OPFORGE_PRELOAD"] for one in environments)
    )
    implementations = [load().implementation("layernorm", name) for name in ("torch_compile", "cpp_twopass")]
    binding.start_ahead(host, implementations, device)
    # C++ kernels don't run there; Inductor does not ask for the processor's vector instructions
    assert asked == (["torch opforge.backends.inductor_gpu_preload"] if wanted else [])
