"""What may stand on one side of a comparison: an implementation, of a revision, with a config, in a Python environment."""

from __future__ import annotations

import io
import os
import re
import subprocess
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path

from opforge.backends.shared_code import SHARED, package_of
from opforge.core.errors import EnvironmentLacks, UsageError
from opforge.core.implementation import Config, Implementation
from opforge.registry import Home, Registry

FORM = "OPERATOR:IMPLEMENTATION[@REVISION][[NAME=VALUE,…]]"
_SIDE = re.compile(r"(?P<operator>[^:@\[\]]+):(?P<implementation>[^:@\[\]]+)(@(?P<revision>[^\[\]]+))?(\[(?P<config>[^\[\]]*)\])?")


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side, as it was asked for. `revision` "" means the files as they are; `config` None the implementation's default;
    `python` "" this interpreter, else that of another environment."""

    text: str
    operator: str
    implementation: str
    revision: str = ""
    config: Config | None = None
    python: str = ""


def parse_side(text: str, python: str = "") -> Side:
    """The Side that `softmax:triton_onepass@main[BLOCK=256]` means; `python` is an interpreter or the folder of a virtual
    environment. Raises UsageError.

    >>> side = parse_side("softmax:triton_onepass@main[BLOCK=256]")
    >>> side.operator, side.implementation, side.revision, str(side.config)
    ('softmax', 'triton_onepass', 'main', 'BLOCK=256')
    """
    found = _SIDE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{text!r} is not a side. Write it as {FORM}, e.g. softmax:torch_eager or 'softmax:triton_onepass@main[BLOCK=256]'.")
    config = None if found["config"] is None else Config(tuple(_setting(part, text) for part in found["config"].split(",") if part.strip()))
    return Side(text=text, operator=found["operator"], implementation=found["implementation"], revision=found["revision"] or "", config=config, python=interpreter(python))


def interpreter(place: str) -> str:
    """The Python of a virtual environment's folder, or `place` itself; "" stays "". Raises UsageError where there is none."""
    if not place:
        return ""
    given = Path(place).expanduser()
    # never resolved: a virtual environment's interpreter is a link, and its place says which environment it is
    found = Path.cwd() / (given / "bin" / "python" if given.is_dir() else given)
    if not found.is_file() or not os.access(found, os.X_OK):
        raise UsageError(f"{place} is neither an interpreter nor the folder of a virtual environment. Make one with: python3 -m venv FOLDER")
    return str(found)


def toolchain_versions(python: str) -> str:
    """What makes a difference in an environment: "torch 2.13.0, triton 3.6.0". Raises EnvironmentLacks when it has no torch."""
    asked = (
        "import importlib.metadata as m\n"
        "for name in ('torch', 'triton', 'tilelang', 'apache-tvm-ffi'):\n"
        "    try:\n        print(name, m.version(name))\n"
        "    except m.PackageNotFoundError:\n        pass\n"
    )
    try:
        said = subprocess.run([python, "-P", "-c", asked], capture_output=True, text=True, timeout=60, check=True).stdout.split("\n")
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentLacks(f"{python} does not run ({error}). Name the interpreter or the folder of a virtual environment with torch in it.") from error
    if not any(line.startswith("torch ") for line in said):
        raise EnvironmentLacks(f"{python} has no torch. Install it there: {python} -m pip install torch")
    return ", ".join(line for line in said if line)


def _setting(part: str, text: str) -> tuple[str, int | str | bool]:
    name, equals, value = (word.strip() for word in part.partition("="))
    if not equals or not name or not value:
        raise UsageError(f"{part.strip()!r} in {text!r} is not NAME=VALUE.")
    if value in ("True", "False"):
        return name, value == "True"
    return name, int(value) if re.fullmatch(r"-?\d+", value) else value


def full_config(implementation: Implementation, side: Side) -> Config | None:
    """The default with the side's settings in place of its own. Raises UsageError for a name or value outside the space."""
    if side.config is None:
        return None
    for name, value in side.config.values:
        if name not in implementation.space:
            raise UsageError(f"{implementation.name} has no tunable {name!r}. It has: {', '.join(implementation.space) or 'none'}.")
        if value not in implementation.space[name]:
            raise UsageError(f"{implementation.name}: {name}={value} is not in its space {implementation.space[name]}.")
    return Config(tuple({**implementation.default.as_dict(), **side.config.as_dict()}.items()))


def registry_of(side: Side, registry: Registry, scratch: Path) -> Registry:
    """The registry that the side's implementation comes from: as it is, or its operator's folder at a revision, put into `scratch`.

    Raises UsageError for an unknown operator, implementation or revision, EnvironmentLacks without git.
    """
    folder = registry.operator(side.operator).folder
    assert folder is not None
    if not side.revision:
        registry.implementation(side.operator, side.implementation)
        return registry
    home = folder_at(folder, side.revision, scratch).parent
    found = Registry((Home(home, f"revision {side.revision}"),))
    found.implementation(side.operator, side.implementation)
    return found


def folder_at(folder: Path, revision: str, scratch: Path) -> Path:
    """`folder` as a git revision has it, extracted below `scratch`, with the device code that it shares where its package is of that
    repository too. Raises UsageError, EnvironmentLacks."""
    top = Path(_git(folder, "rev-parse", "--show-toplevel").decode().strip()).resolve()
    # asked first: `git archive` would take an option for a revision
    commit = _git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}").decode().strip()
    inside = folder.resolve().relative_to(top)
    package = package_of(folder)
    shared = [(package / name).relative_to(top).as_posix() for name in SHARED] if package.is_relative_to(top) and folder.resolve().is_relative_to(package) else []
    there = _git(top, "ls-tree", "-d", "--name-only", "--full-tree", commit, "--", *shared).decode().splitlines() if shared else []
    archive = _git(top, "archive", "--format=tar", commit, "--", inside.as_posix(), *there)
    target = scratch / commit[:12]
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(target, filter="data")
    return target / inside


def _git(folder: Path, *words: str) -> bytes:
    try:
        return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, check=True).stdout
    except FileNotFoundError as error:
        raise EnvironmentLacks("Comparing revisions needs git, which is not on PATH. Install git.") from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()
        revision = words[-1].removesuffix("^{commit}")
        raise UsageError(f"git has no {revision!r} of {folder}{': ' + said[0] if said else ''}. See which there are with: git -C {folder} log --oneline .") from error


def named(side: Side, other: Side) -> str:
    """The side in the words of a result: what was asked for, with the interpreter where the sides differ in it."""
    return f"{side.text} ({side.python})" if side.python != other.python and side.python else side.text


def with_revision(side: Side, revision: str) -> Side:
    """The same side at another revision."""
    return replace(side, revision=revision, text=f"{side.operator}:{side.implementation}@{revision}")
