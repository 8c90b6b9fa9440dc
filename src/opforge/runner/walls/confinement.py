"""Raises the walls around a worker, once, before any of a kernel's own code runs. Each is put up where the kernel of
the operating system allows it; what
stands is read from outside by the parent."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from opforge.backends.cache import cache_root
from opforge.backends.shared_code import PACKAGE
from opforge.runner.walls import namespaces, sandbox
from opforge.runner.walls.guards import Guards
from opforge.walls import landlock, mounts, places, privileges, seccomp

HIDDEN = "OPFORGE_HIDDEN"
"""Files that a worker sees empty, as the server's environment names them: the store of records, on which a reader could
hold a lock.
"""


def raise_around(writable: Sequence[Path], scratch: Path, guards: Guards, covered: Sequence[Path] = ()) -> int:
    """Shut this process in, for good; the version of Landlock that confines what it writes and reads, 0 for none.

    covered   the kernel's file, then what else its hash covers: of users' files these alone can be read, and
              nothing but these is seen in the kernel's folder, which may lie where Python looks for modules

    The order matters: mounting needs the privileges that are given up after it, and a filter would refuse what the
    others need.
    """
    full = sandbox.wanted() == "full"
    own_processes = guards.own_processes and os.getppid() == 0
    if guards.read_only:
        hidden = [Path(name) for name in os.environ.get(HIDDEN, "").split(os.pathsep) if name]
        mounts.read_only(writable, hidden, scratch.parent, _shown(covered) if guards.reads else None)
    version = (
        landlock.confine(
            writable,
            [Path("/proc")] if own_processes and os.getpid() == namespaces.outer_pid() else (),
            (*places.of_workers(), cache_root(), *covered) if guards.reads else None,
        )
        if guards.files and full
        else 0
    )
    if guards.filtered:
        privileges.drop_privileges()
        # a namespace of its own, or Landlock, keeps signals in already; without either, none is sent to others
        seccomp.install(
            None if own_processes else os.getpid(), signals=not own_processes and version < landlock.SIGNALS_CONFINED
        )
    os.environ.pop(HIDDEN, None)
    return version


def _shown(covered: Sequence[Path]) -> dict[Path, list[Path]]:
    """A kernel's folder, and what is seen in it; nothing for the package's own, whose files no author changes."""
    folder = covered[0].resolve().parent if covered else PACKAGE
    if folder.is_relative_to(PACKAGE):
        return {}
    return {folder: [path for path in map(Path.resolve, covered) if path.is_relative_to(folder)]}
