"""A wheel of operators with their compiled kernels: what `pip install` makes known wherever opforge is.

The wheel's package is the home itself, under the entry point group `opforge.operators`. A kernel that was built
ahead is used where source, flags and target match; on another machine it is compiled on first use, as any other.
"""

from __future__ import annotations

import base64
import hashlib
import json
import keyword
import re
import sysconfig
import zipfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from opforge.core.language.errors import UsageError
from opforge.core.language.version import __version__
from opforge.registry.discovery import PACKAGE_HOME, Registry
from opforge.registry.tuned_choices import TUNED, choices_together

EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time of every file in a wheel: the same files make the same wheel."""
VERSION = r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?"


def home_to_pack(registry: Registry, names: Sequence[str], version: str) -> Path:
    """The one home that these operators lie in. Raises UsageError where it is opforge's own package, where there are
    several, and where its name or the version are none of a Python package.
    """
    own = [name for name in names if registry.folders[name].is_relative_to(PACKAGE_HOME)]
    if own:
        raise UsageError(
            f"{', '.join(own)}: opforge's own operators are in its own wheel, with what was built there. Build them "
            "without --wheel, then: pip wheel --no-deps . where opforge's sources are."
        )
    homes = {home.path for name in names for home in registry.homes if registry.folders[name].is_relative_to(home.path)}
    if len(homes) != 1:
        raise UsageError(f"A wheel holds operators of one home, not of {', '.join(map(str, sorted(homes)))}. Name one.")
    (home,) = homes
    package = _package(home)
    if not (package.isascii() and package.isidentifier()) or keyword.iskeyword(package) or package == "opforge":
        raise UsageError(f"{home.name!r} cannot name a Python package. Rename the folder {home}, e.g. to my_ops.")
    if not re.fullmatch(VERSION, version):
        raise UsageError(f"{version!r} is no version of a package. Write it as 1.0 or 0.2.1.")
    return home


def kernel_wheel(
    registry: Registry, names: Sequence[str], libraries: Collection[Path], folder: Path, version: str
) -> Path:
    """Writes a wheel of these operators, all of one home, into `folder`; its path. Raises what `home_to_pack` raises.

    libraries   those in built/ that belong into it: others there are of sources as they were
    """
    home = home_to_pack(registry, names, version)
    package = _package(home)
    built = {path.resolve().parent for path in libraries}
    members = {
        f"{package}/{path.relative_to(home).as_posix()}": path.read_bytes()
        for name in names
        for path in _files(registry.folders[name], built)
    }
    for name in names:
        inside = registry.folders[name].relative_to(home).as_posix()
        for file, choices in choices_together(registry.operator(name)).items():
            members[f"{package}/{inside}/{TUNED}/{file}"] = (json.dumps(choices, indent=1) + "\n").encode()
    members[f"{package}/__init__.py"] = f'"""Operators for opforge: {", ".join(names)}."""\n'.encode()
    # a library is for one kind of machine
    native = any(name.endswith((".so", ".cubin")) for name in members)
    tag = f"py3-none-{re.sub(r'[^a-z0-9]', '_', sysconfig.get_platform())}" if native else "py3-none-any"
    info = f"{package}-{version}.dist-info"
    members |= {
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\nSummary: Operators for opforge: "
            f"{', '.join(names)}\nRequires-Dist: opforge>={__version__}\n"
        ).encode(),
        f"{info}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: opforge {__version__}\nRoot-Is-Purelib: "
            f"{'false' if native else 'true'}\nTag: {tag}\n"
        ).encode(),
        f"{info}/entry_points.txt": f"[opforge.operators]\n{package} = {package}\n".encode(),
    }
    listed = "".join(f"{name},sha256={_digest(held)},{len(held)}\n" for name, held in members.items())
    members[f"{info}/RECORD"] = f"{listed}{info}/RECORD,,\n".encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{package}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, held in members.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, held)
    return path


def _package(home: Path) -> str:
    return home.name.replace("-", "_")


def _files(folder: Path, built: Collection[Path]) -> Iterator[Path]:
    """What an operator's folder holds; byte code, hidden files and other libraries than those built are left out."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
        if path.is_file() and not hidden and (parts[0] != "built" or path.resolve().parent in built):
            yield path


def _digest(held: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(held).digest()).rstrip(b"=").decode()
