"""Where opforge keeps things of the user's: what can be made again in the cache folder, what can't in the data
folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """$OPFORGE_CACHE, or `opforge` in the user's cache folder ($XDG_CACHE_HOME, ~/.cache).

    >>> cache_folder({"OPFORGE_CACHE": "/scratch/kernels"}).as_posix()
    '/scratch/kernels'
    """
    variables = os.environ if environ is None else environ
    given = variables.get("OPFORGE_CACHE")
    return Path(given) if given else Path(variables.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "opforge"


def data_folder(environ: Mapping[str, str] | None = None) -> Path:
    """`opforge` in the user's data folder ($XDG_DATA_HOME, ~/.local/share).

    >>> data_folder({"XDG_DATA_HOME": "/data"}).as_posix()
    '/data/opforge'
    """
    variables = os.environ if environ is None else environ
    return Path(variables.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "opforge"
