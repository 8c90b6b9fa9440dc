"""What A and B of a comparison may be (workbench/compare.py): an implementation, of a revision, with a config, in a
Python environment."""

from __future__ import annotations

import io
import os
import re
import subprocess
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path

from opforge.backends.shared_code import SHARED, package_of
from opforge.core.definition.implementation import Config, Implementation
from opforge.core.language.errors import EnvironmentLacks, UsageError
from opforge.registry import Home, Registry
from opforge.workbench.configs import setting_value, with_settings

FORM = "OPERATOR:IMPLEMENTATION[@REVISION][[NAME=VALUE,…]]"
_SIDE = re.compile(
    r"(?P<operator>[^:@\[\]]+):(?P<implementation>[^:@\[\]]+)(@(?P<revision>[^\[\]]+))?(\[(?P<config>[^\[\]]*)\])?"
)


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side, as it was asked for. `revision` "" means the files as they are; `config` None the implementation's
    default;
    `python` "" this interpreter, else that of another environment."""

    text: str
    operator: str
    implementation: str
    revision: str = ""
    config: Config | None = None
    python: str = ""


def parse_side(text: str, python: str = "") -> Side:
    """The Side that `softmax:triton_onepass@main[BLOCK=256]` means; `python` is an interpreter or the folder of a
    virtual environment. Raises UsageError.

    >>> side = parse_side("softmax:triton_onepass@main[BLOCK=256]")
    >>> side.operator, side.implementation, side.revision, str(side.config)
    ('softmax', 'triton_onepass', 'main', 'BLOCK=256')
    """
    match = _SIDE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"{text!r} is not a candidate. Write it as {FORM}, e.g. softmax:torch_eager or "
            "'softmax:triton_onepass@main[BLOCK=256]'."
        )
    config = (
        None
        if match["config"] is None
        else Config(tuple(_setting(part, text) for part in match["config"].split(",") if part.strip()))
    )
    return Side(
        text=text,
        operator=match["operator"],
        implementation=match["implementation"],
        revision=match["revision"] or "",
        config=config,
        python=interpreter(python),
    )


def interpreter(place: str) -> str:
    """The Python of a virtual environment's folder, or `place` itself; "" stays "". Raises UsageError where there is
    none.
    """
    if not place:
        return ""
    given = Path(place).expanduser()
    # never resolved: a virtual environment's interpreter is a link, and its place says which environment it is
    path = Path.cwd() / (given / "bin" / "python" if given.is_dir() else given)
    if not path.is_file() or not os.access(path, os.X_OK):
        raise UsageError(
            f"{place} is neither an interpreter nor the folder of a virtual environment. Make one with: python3 -m "
            "venv FOLDER"
        )
    return str(path)


def toolchain_versions(python: str) -> str:
    """What makes a difference in an environment: "torch 2.13.0, triton 3.6.0". Raises EnvironmentLacks when it has no
    torch.
    """
    asked = (
        "import importlib.metadata as m\n"
        "for name in ('torch', 'triton', 'tilelang', 'apache-tvm-ffi'):\n"
        "    try:\n        print(name, m.version(name))\n"
        "    except m.PackageNotFoundError:\n        pass\n"
    )
    try:
        answer = subprocess.run(
            [python, "-P", "-c", asked], capture_output=True, text=True, timeout=60, check=True
        ).stdout.split("\n")
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentLacks(
            f"{python} does not run ({error}). Name the interpreter or the folder of a virtual environment with "
            "torch in it."
        ) from error
    if not any(line.startswith("torch ") for line in answer):
        raise EnvironmentLacks(f"{python} has no torch. Install it there: {python} -m pip install torch")
    return ", ".join(line for line in answer if line)


def _setting(part: str, text: str) -> tuple[str, int | str | bool]:
    name, equals, value = (word.strip() for word in part.partition("="))
    if not equals or not name or not value:
        raise UsageError(f"{part.strip()!r} in {text!r} is not NAME=VALUE.")
    return name, setting_value(value)


def full_config(implementation: Implementation, side: Side) -> Config | None:
    """The default with the side's settings in place of its own. Raises UsageError for a name or value outside the
    space.
    """
    return None if side.config is None else with_settings(implementation, side.config)


def registry_of(side: Side, registry: Registry, scratch: Path) -> Registry:
    """The registry that the side's implementation comes from: as it is, or its operator's folder at a revision, put
    into `scratch`.

    Raises UsageError for an unknown operator, implementation or revision, EnvironmentLacks without git.
    """
    folder = registry.operator(side.operator).folder
    assert folder is not None
    if not side.revision:
        registry.implementation(side.operator, side.implementation)
        return registry
    home = folder_at(folder, side.revision, scratch).parent
    registry_there = Registry((Home(home, f"revision {side.revision}"),))
    registry_there.implementation(side.operator, side.implementation)
    return registry_there


def folder_at(folder: Path, revision: str, scratch: Path) -> Path:
    """`folder` as a git revision has it, extracted below `scratch`, with the device code that it shares where its
    package is of that
    repository too. Raises UsageError, EnvironmentLacks."""
    top = Path(_git(folder, "rev-parse", "--show-toplevel").decode().strip()).resolve()
    # asked first: `git archive` would take an option for a revision
    commit = (
        _git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}").decode().strip()
    )
    inside = folder.resolve().relative_to(top)
    package = package_of(folder)
    shared = (
        [(package / name).relative_to(top).as_posix() for name in SHARED]
        if package.is_relative_to(top) and folder.resolve().is_relative_to(package)
        else []
    )
    there = (
        _git(top, "ls-tree", "-d", "--name-only", "--full-tree", commit, "--", *shared).decode().splitlines()
        if shared
        else []
    )
    inside = _place_then(top, commit, inside)
    archive = _git(top, "archive", "--format=tar", commit, "--", inside.as_posix(), *there)
    target = scratch / commit[:12]
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(target, filter="data")
    return target / inside


def _place_then(top: Path, commit: str, inside: Path) -> Path:
    """Where an operator's folder lay at a commit: where it lies now, or in another family of its home, or in none."""
    homes = list(dict.fromkeys((inside.parent, inside.parent.parent)))
    known = (
        _git(top, "ls-tree", "-r", "--name-only", "--full-tree", commit, "--", *(home.as_posix() for home in homes))
        .decode()
        .splitlines()
    )
    folders = [Path(name).parent for name in known if name.endswith(f"/{inside.name}/op.py")]
    return (
        next((folder for folder in folders if folder.parent in homes or folder.parent.parent in homes), inside)
        if inside not in folders
        else inside
    )


def _git(folder: Path, *words: str) -> bytes:
    try:
        return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, check=True).stdout
    except FileNotFoundError as error:
        raise EnvironmentLacks("Comparing revisions needs git, which is not on PATH. Install git.") from error
    except subprocess.CalledProcessError as error:
        complaint = error.stderr.decode(errors="replace").strip().splitlines()
        revision = words[-1].removesuffix("^{commit}")
        raise UsageError(
            f"git has no {revision!r} of {folder}{': ' + complaint[0] if complaint else ''}. See which there are with: "
            f"git -C {folder} log --oneline ."
        ) from error


def named(side: Side, other: Side) -> str:
    """The side in the words of a result: what was asked for, with the interpreter where the sides differ in it."""
    return f"{side.text} ({side.python})" if side.python != other.python and side.python else side.text


def with_revision(side: Side, revision: str) -> Side:
    """The same side at another revision."""
    return replace(side, revision=revision, text=f"{side.operator}:{side.implementation}@{revision}")
