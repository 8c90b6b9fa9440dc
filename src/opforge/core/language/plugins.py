"""What installed packages plug in, by entry point group.

`importlib.metadata` takes longer to import than `opforge list` takes for everything else, and hardly anybody has a
plugin: it is imported only where an installed package names the group at all.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from opforge.core.language.errors import UsageError


def plugged(group: str) -> dict[str, Any]:
    """What each entry point of `group` loads, by its name. Raises UsageError with the plugin's name for whatever
    loading raises.
    """
    if not any(_names(Path(place or "."), group) for place in sys.path):
        return {}
    from importlib.metadata import entry_points

    targets = {}
    for entry in entry_points(group=group):
        try:
            targets[entry.name] = entry.load()
        except Exception as error:  # a plugin is a guest's code
            package = entry.dist.name if entry.dist is not None else entry.value
            raise UsageError(
                f"Plugin {entry.name!r} ({entry.value}) of {group} cannot be loaded: {type(error).__name__}: "
                f"{error}. Mend {package}, or uninstall it."
            ) from error
    return targets


def _names(place: Path, group: str) -> bool:
    """Whether a distribution installed in `place` may name the group; what is not a folder (a zip file) is left to
    importlib.
    """
    if not place.is_dir():
        return place.exists() and not place.name.startswith(
            "python"
        )  # the standard library's own zip holds no distributions
    return any(
        group.encode() in listing.read_bytes()
        for kind in ("*.dist-info", "*.egg-info")
        for listing in place.glob(f"{kind}/entry_points.txt")
    )
