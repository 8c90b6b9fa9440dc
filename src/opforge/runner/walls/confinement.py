"""Raises the walls around a worker, once, before any of a kernel's own code runs. Each is put up where the kernel of
the operating system allows it; what
stands is read from outside by the parent."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from opforge.runner.walls import namespaces, sandbox
from opforge.runner.walls.guards import Guards
from opforge.walls import landlock, mounts, privileges, seccomp

HIDDEN = "OPFORGE_HIDDEN"
"""Files that a worker sees empty, as the server's environment names them: the store of records, on which a reader could
hold a lock.
"""


def raise_around(writable: Sequence[Path], scratch: Path, guards: Guards) -> int:
    """Shut this process in, for good; the version of Landlock that confines what it writes, 0 for none.

    The order matters: mounting needs the privileges that are given up after it, and a filter would refuse what the
    others need.
    """
    full = sandbox.wanted() == "full"
    own_processes = guards.own_processes and os.getppid() == 0
    if guards.read_only:
        hidden = [Path(name) for name in os.environ.get(HIDDEN, "").split(os.pathsep) if name]
        mounts.read_only(writable, hidden, scratch.parent)
    version = (
        landlock.confine(writable, [Path("/proc")] if own_processes and os.getpid() == namespaces.outer_pid() else ())
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
