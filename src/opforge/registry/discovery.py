"""Finds operator folders and loads their `op.py`.

A home is a folder of operator folders, or of families of them: HOME/softmax/op.py, HOME/rows/softmax/op.py. The
package's own is always there; `--home` and `OPFORGE_HOME` add others, and installed packages add theirs through the
entry point group `opforge.operators` (each entry names a module whose folder is a home, or a `pathlib.Path`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from opforge.core.definition.implementation import DEFINITION, Implementation
from opforge.core.definition.operator import Operator
from opforge.core.language.errors import UsageError, unknown
from opforge.core.language.plugins import plugged
from opforge.registry.call_checks import check_calls
from opforge.registry.definition_checks import check_definition, check_gradient
from opforge.registry.guest_modules import load_module
from opforge.registry.implementation_files import find_source, implementation_stems, read_implementation
from opforge.registry.native_reads import check_reads
from opforge.registry.statement_checks import check_names

PACKAGE_HOME = Path(__file__).resolve().parent.parent / "ops"


@dataclass(frozen=True)
class Home:
    """A folder of operator folders, and where it came from: "package", "option", "environment" or "entry point
    NAME".
    """

    path: Path
    origin: str


@dataclass(frozen=True)
class Registry:
    """The operators of some homes, loaded when asked for. A later home may not redefine an operator of an
    earlier one.
    """

    homes: tuple[Home, ...]
    _loaded: dict[str, Operator] = field(default_factory=dict, repr=False, compare=False)
    _asked: set[str] = field(default_factory=set, repr=False, compare=False)
    _implementations: dict[str, tuple[Implementation, ...]] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def folders(self) -> Mapping[str, Path]:
        """Operator name → folder, for every folder that holds an op.py."""
        found: dict[str, Path] = {}
        for home in self.homes:
            for folder in operator_folders(home.path):
                if folder.name in found:
                    raise UsageError(
                        f"Operator {folder.name!r} is defined twice: {found[folder.name]} and {folder}. Rename one "
                        "folder."
                    )
                found[folder.name] = folder
        return found

    def family(self, name: str) -> str:
        """The family that an operator's folder lies in ("rows"); "" where it lies in a home itself."""
        parent = self.folders[name].parent
        return "" if any(home.path == parent for home in self.homes) else parent.name

    def names(self) -> tuple[str, ...]:
        """Every operator's name, in alphabetical order."""
        return tuple(sorted(self.folders))

    def operator(self, name: str) -> Operator:
        """The operator of that name. Raises UsageError with the nearest name, or with what is wrong in its op.py."""
        found = self.unasked(name)
        if name not in self._asked:
            try:
                check_calls(found)
            except UsageError as error:
                raise UsageError(f"{self.folders[name] / 'op.py'}: {error}") from error
            self._asked.add(name)
        return found

    def unasked(self, name: str) -> Operator:
        """As `operator`, its cases and workloads not looked at one by one: so a list of everything is quick."""
        if name not in self.folders:
            bare = next((home.path / name for home in self.homes if (home.path / name).is_dir()), None)
            if bare is not None and bare.name.isidentifier():
                raise UsageError(
                    f"{bare} has no op.py, which makes a folder an operator. Write one that says `operator = "
                    "Operator(…)`. See one: opforge show softmax --source"
                )
            raise unknown(
                "operator",
                name,
                self.folders,
                f"See all with: opforge list. Start a new one with: opforge new {name}, or name the folder that "
                "holds it: opforge --home FOLDER …",
            )
        if name not in self._loaded:
            self._loaded[name] = _load_definition(
                name, self.folders[name], self.folders, guest=self._is_guest(self.folders[name])
            )
        return self._loaded[name]

    def _is_guest(self, folder: Path) -> bool:
        """Whether a folder is of a home that somebody names: what is installed as a package has run its code anyway."""
        home = next(home for home in self.homes if folder.is_relative_to(home.path))
        return home.origin != "package" and not home.origin.startswith("entry point")

    def gradient_operators(self, name: str) -> tuple[Operator, ...]:
        """The operators that the definition of `name` names for its gradients; none where its reference is
        differentiated.
        """
        operator = self.operator(name)
        named = (operator.gradient, *operator.further_gradients)
        return tuple(self.operator(other) for other in named if other is not None)

    def operators(self) -> Iterator[Operator]:
        """Every operator, in alphabetical order."""
        return (self.operator(name) for name in self.names())

    def sources(self, name: str) -> tuple[tuple[str, Path], ...]:
        """Name and folder of each implementation of an operator: those that its op.py lists, in its order, then other
        files beside it, then those that later homes have for it in a folder of its name without an op.py.

        Raises UsageError where two files have one name.
        """
        operator = self.unasked(name)
        assert operator.folder is not None
        found = dict.fromkeys(operator.implementations, operator.folder)
        for folder in (operator.folder, *self._further(name)):
            listed = operator.implementations if folder == operator.folder else ()
            for stem in implementation_stems(folder, listed):
                if found.setdefault(stem, folder) != folder:
                    raise UsageError(
                        f"{name} has two files called {stem}: in {found[stem]} and in {folder}. Rename one of them, "
                        f"e.g. {stem}_mine."
                    )
        return tuple(found.items())

    def _further(self, name: str) -> Iterator[Path]:
        """Folders of other homes that have implementations of an operator, and no definition."""
        for home in self.homes:
            for folder in (home.path / name, home.path / self.family(name) / name):
                if folder != self.folders[name] and folder.is_dir() and not (folder / "op.py").exists():
                    yield folder

    def implementations(self, name: str) -> tuple[Implementation, ...]:
        """The implementations of an operator, in the order of `sources`. A torch file comes twice: as it is, and
        through torch.compile under the name `torch_compile` (or `torch_compile_IDEA` for a second file); a DEFINITION,
        which nobody calls, once.
        """
        if name not in self._implementations:
            operator = self.operator(name)
            found: list[Implementation] = []
            for stem, folder in self.sources(name):
                implementation = read_implementation(name, folder, stem)
                check_names(operator, implementation)
                check_reads(operator, implementation)
                found.append(implementation)
                if implementation.backend == "torch" and stem != DEFINITION:
                    found.append(
                        dataclasses.replace(
                            implementation,
                            name=_twin(stem),
                            backend="compile",
                            idea=f"{stem} through torch.compile",
                            inaccurate=implementation.inaccurate or implementation.inaccurate_compiled,
                        )
                    )
            self._implementations[name] = tuple(found)
        return self._implementations[name]

    def implementation_names(self, name: str) -> tuple[str, ...]:
        """The names of an operator's implementations. Their files are found and not read, so that a list of everything
        is quick.
        """
        names: list[str] = []
        for stem, folder in self.sources(name):
            backend, _ = find_source(name, folder, stem)
            names += [stem, _twin(stem)] if backend == "torch" and stem != DEFINITION else [stem]
        return tuple(names)

    def implementation(self, operator: str, name: str) -> Implementation:
        """One implementation by name. Raises UsageError with the nearest name."""
        known = {implementation.name: implementation for implementation in self.implementations(operator)}
        if name not in known:
            raise unknown(f"implementation of {operator}", name, known)
        return known[name]


def operator_folders(home: Path) -> Iterator[Path]:
    """The folders below a home that hold an op.py, those in families after those in the home itself. An operator's own
    folders are not looked into.
    """
    families = []
    for folder in sorted(path for path in home.iterdir() if path.is_dir()) if home.is_dir() else ():
        if (folder / "op.py").is_file():
            yield folder
        elif not folder.name.startswith((".", "_")):
            families.append(folder)
    for family in families:
        yield from sorted(definition.parent for definition in family.glob("*/op.py"))


def find_operator(home: Path, name: str) -> Path | None:
    """The folder of an operator in a home, in whatever family; None where there is none."""
    return next((folder for folder in operator_folders(home) if folder.name == name), None)


def load(homes: Iterable[Path] = ()) -> Registry:
    """The registry of the package's operators, those in `homes`, in $OPFORGE_HOME, and in installed plugins.

    Raises UsageError when a given home is not a folder.
    """
    found = [Home(PACKAGE_HOME, "package")]
    given = [(path, "option") for path in homes]
    given += [(Path(text), "environment") for text in os.environ.get("OPFORGE_HOME", "").split(os.pathsep) if text]
    for path, origin in given:
        if not path.is_dir():
            raise UsageError(
                f"{path} is not a folder. A home holds one folder per operator; make one with: opforge new NAME "
                f"--home {path}"
            )
        if (path / "op.py").is_file():
            raise UsageError(
                f"{path} is an operator's own folder. A home holds such folders: name {path.resolve().parent}"
            )
        found.append(Home(path.resolve(), origin))
    for name, target in plugged("opforge.operators").items():
        # a package without an __init__.py has no file, and its folder all the same
        path = (
            target
            if isinstance(target, Path)
            else Path(target.__file__).parent
            if target.__file__
            else Path(next(iter(target.__path__)))
        )
        found.append(Home(path.resolve(), f"entry point {name}"))
    return Registry(tuple({home.path: home for home in found}.values()))


def _twin(stem: str) -> str:
    """The name of a torch file's torch.compile twin."""
    idea = stem.removeprefix("torch_")
    return "torch_compile" if idea == "eager" else f"torch_compile_{idea}"


def _load_definition(name: str, folder: Path, known: Collection[str], *, guest: bool) -> Operator:
    path = folder / "op.py"
    module = load_module("operator", name, path, guest=guest)
    operator = getattr(module, "operator", None)
    if not isinstance(operator, Operator):
        raise UsageError(f"{path} defines no `operator = Operator(...)`. See: opforge show softmax --source")
    if operator.name != name:
        raise UsageError(f"{path} defines operator {operator.name!r} in a folder named {name!r}. Let them agree.")
    try:
        check_definition(operator)
        check_gradient(operator, known)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    return dataclasses.replace(operator, folder=folder)
