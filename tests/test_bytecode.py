"""Compiled Python where a toolchain was installed without: made by all processors, once, and given up with the host."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from opforge.machine import accelerator
from opforge.registry import load
from opforge.runner import Isolated
from opforge.runner.parent import bytecode
from opforge.trial import binding, compile_ahead

pytestmark = pytest.mark.own_servers


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


def test_this_process_keeps_bytecode_where_its_servers_do(kept, monkeypatch):
    """It imports torch as they do: seconds each time, where torch came without."""
    monkeypatch.setattr(bytecode, "bytecode_kept", lambda: kept)
    for given, expected in ((None, kept["PYTHONPYCACHEPREFIX"]), ("/its/own", "/its/own")):
        monkeypatch.setattr(sys, "pycache_prefix", given)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        bytecode.keep_here()
        assert (sys.pycache_prefix, sys.dont_write_bytecode) == (expected, given is not None)


@pytest.mark.parametrize(("seen", "device", "compiled"), [("9.0\n", "", ["sm_90a"]), ("8.0\n8.0\n", "cuda", ["sm_80"]),
                                                          ("9.0\n8.0\n", "", []), ("9.0\n", "cpu", []), ("", "", []),
                                                          ("[N/A]\n", "", [])])  # fmt: skip
def test_nvcc_begins_before_torch_is_here_where_its_target_is_sure(seen, device, compiled, monkeypatch):
    """Of two kinds of GPU which one is taken, PyTorch alone knows; what needs another target is left alone."""
    registry, made = load(), []
    items = [registry.implementation("softmax", name) for name in ("cuda_onchip", "triton_onepass")]
    monkeypatch.setattr(compile_ahead.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(accelerator.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(accelerator, "command_output", lambda words: seen.strip())
    monkeypatch.setattr(
        compile_ahead.native, "library", lambda item, config, toolchain: made.append((item.name, toolchain.target))
    )
    with compile_ahead.compiling_without_torch([*items, replace(items[0], arch="sm_100a")], device):
        until = time.monotonic() + 10
        while len(made) < len(compiled) and time.monotonic() < until:
            time.sleep(0.01)
    assert made == [("cuda_onchip", target) for target in compiled]


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
