"""Makes an operator's folder from a name: a definition, four kernels and a README that run as they stand."""

from __future__ import annotations

from pathlib import Path

from opforge.core.language.errors import UsageError
from opforge.registry import Registry, fits

TEMPLATE = Path(__file__).resolve().parent / "template"


def create(registry: Registry, name: str, home: Path) -> tuple[Path, ...]:
    """Write `home/name/`: an elementwise operator y = x * x, to be changed into what you want. The files written.

    Raises UsageError when the name is none for an operator, or is taken.
    """
    folder = checked_folder(registry, name, home)
    written: list[Path] = []
    for source in sorted(TEMPLATE.iterdir()):
        if source.is_file():
            target = folder / source.name.removesuffix(".txt")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(source.read_text(encoding="utf-8").replace("NAME", name), encoding="utf-8")
            written.append(target)
    return tuple(written)


def checked_folder(registry: Registry, name: str, home: Path) -> Path:
    """Where the folder of an operator called `name` goes. Raises UsageError when it cannot have that name."""
    if not fits(name) or name != name.lower():
        raise UsageError(
            f"{name!r} cannot name an operator: use lower-case letters, digits and underscores, e.g. rotary_embedding."
        )
    if name in registry.names():
        raise UsageError(
            f"There is an operator {name!r} already, in {registry.folders[name]}. Choose another name, or look at "
            f"it: opforge show {name}"
        )
    folder = home / name
    if folder.exists():
        raise UsageError(f"{folder} exists already. Remove it or choose another name.")
    return folder
