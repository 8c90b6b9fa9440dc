"""Loads an implementation's Python file, and says what a missing toolchain is called."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from opforge.backends.shared_code import package_of
from opforge.core.language.errors import UsageError

KERNEL_MODULE = "opforge_kernel_"
"""What the names of modules that are kernels' files begin with."""


def installed(name: str) -> bool:
    """Whether a top-level module can be imported, without importing it."""
    return importlib.util.find_spec(name) is not None


def load_source(path: Path) -> ModuleType:
    """The module in `path`. Loaded again when its text has changed."""
    text = path.read_bytes()
    name = f"{KERNEL_MODULE}{path.stem}_{hashlib.sha256(str(path).encode() + text).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    _point_shared(package_of(path))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # registered before it runs: dataclasses with postponed annotations look their module up
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _point_shared(package: Path) -> None:
    """Let `opforge.device` mean this package's folder for what is imported from now on: that of the revision which a
    kernel's file is of.
    In earlier revisions the folder is called primitives."""
    import opforge.device

    _point(opforge.device, package / "device")
    earlier = package / "primitives"
    if earlier.is_dir():
        _point(sys.modules.setdefault("opforge.primitives", ModuleType("opforge.primitives")), earlier)


def _point(room: ModuleType, folder: Path) -> None:
    if not folder.is_dir() or list(getattr(room, "__path__", ())) == [str(folder)]:
        return
    room.__path__ = [str(folder)]
    for name in [name for name in sys.modules if name.startswith(f"{room.__name__}.")]:
        del sys.modules[name]
        vars(room).pop(name.removeprefix(f"{room.__name__}.").partition(".")[0], None)


def required(module: ModuleType, name: str, path: Path) -> object:
    """An attribute that a kernel file must define, or a UsageError that says so."""
    value = getattr(module, name, None)
    if value is None:
        raise UsageError(
            f"{path} defines no `{name}`. A {path.stem.split('_', 1)[0]} implementation needs one; see docs/kernels.md."
        )
    return value
