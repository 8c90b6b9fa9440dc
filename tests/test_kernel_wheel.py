"""A wheel of operators of one's own with their compiled kernels."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import shutil
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode

import pytest

from opforge.backends import native
from opforge.backends.cpp import Cpp
from opforge.core.language.errors import UsageError
from opforge.forge import create
from opforge.registry import load
from opforge.workbench.kernel_wheel import home_to_pack, kernel_wheel


@pytest.fixture
def home(tmp_path):
    create(load(), "squares", tmp_path / "my-ops")
    return tmp_path / "my-ops"


@pytest.mark.skipif(shutil.which("g++") is None, reason="a kernel is compiled: apt-get install g++")
def test_an_installed_wheel_brings_operators_whose_kernels_need_no_compiler(home, tmp_path):
    """The seeds' static mode: a library that is there and matches is used, on a machine that cannot compile."""
    registry = load([home])
    kernel = registry.implementation("squares", "cpp_flat")
    stale = home / "squares" / "built" / "of_yesterday"
    stale.mkdir(parents=True)
    (stale / "kernel.so").write_bytes(b"old")
    entry = native.build_ahead(kernel, kernel.default, Cpp().toolchain())
    wheel = kernel_wheel(registry, ["squares"], [entry.path], tmp_path / "dist", "1.2")
    assert wheel.name.startswith("my_ops-1.2-py3-none-") and not wheel.name.endswith("any.whl")
    again = kernel_wheel(registry, ["squares"], [entry.path], tmp_path / "again", "1.2")
    assert again.read_bytes() == wheel.read_bytes()

    archive = zipfile.ZipFile(wheel)
    listed = list(csv.reader(io.StringIO(archive.read("my_ops-1.2.dist-info/RECORD").decode())))
    assert {row[0] for row in listed} == set(archive.namelist())
    for name, digest, size in listed[:-1]:
        held = archive.read(name)
        found = urlsafe_b64encode(hashlib.sha256(held).digest()).rstrip(b"=").decode()
        assert (digest, int(size)) == (f"sha256={found}", len(held))
    assert not any("of_yesterday" in name for name in archive.namelist())

    archive.extractall(tmp_path / "installed")  # what pip does with it
    script = """
import torch
from opforge.backends import native
from opforge.backends.cpp import Cpp
from opforge.registry import load
kernel = load().implementation("squares", "cpp_flat")
print(native.library(kernel, kernel.default, Cpp().toolchain()).how)
"""
    environment = {**os.environ, "PATH": "/nowhere", "PYTHONPATH": str(tmp_path / "installed")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip() == "built ahead", done.stderr[-2000:]


def test_what_makes_no_wheel_is_told_before_anything_is_compiled(home, tmp_path):
    other = tmp_path / "class"
    create(load(), "cubes", other)
    with pytest.raises(UsageError, match=r"relu: opforge's own operators are in its own wheel.*pip wheel"):
        home_to_pack(load([home]), ["squares", "relu"], "1.0")
    with pytest.raises(UsageError, match=r"operators of one home.*Name one"):
        home_to_pack(load([home, other]), ["squares", "cubes"], "1.0")
    with pytest.raises(UsageError, match=r"'class' cannot name a Python package. Rename the folder"):
        home_to_pack(load([other]), ["cubes"], "1.0")
    with pytest.raises(UsageError, match=r"'new' is no version.*Write it as 1.0"):
        home_to_pack(load([home]), ["squares"], "new")
