"""Shuts itself in and becomes a tool: `python -I -S inside.py NAME=VALUE… -- COMMAND…`, with the names of tool.Request.

A script of its own, which imports its neighbours by their bare names and little else: it runs before every compiler,
and must not take a twentieth of what a small compilation takes.
"""

import os
import resource
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import landlock  # type: ignore[import-not-found]
import mounts  # type: ignore[import-not-found]
import privileges  # type: ignore[import-not-found]
import seccomp  # type: ignore[import-not-found]


def _limited(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        resource.setrlimit(kind, (value, value))
    except (OSError, ValueError):
        # a smaller limit is there, or the kernel has no such limit
        return


def _apart() -> bool:
    """Namespaces for the children of this process: of processes, and of the network and IPC where there are those."""
    if privileges.enter_namespaces()[0]:
        return True
    flags = privileges.CLONE_NEWPID | privileges.CLONE_NEWNET | privileges.CLONE_NEWIPC
    return bool(sys.platform == "linux" and privileges._libc().unshare(flags) == 0)


def _ended_as(pid: int, processor_s: int) -> None:
    """End as the process does that this one waits for."""
    _, status, used = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == -privileges.SIGKILL and used.ru_utime + used.ru_stime >= 0.9 * processor_s:
        # the first process of a namespace ignores the signal that says so, and is killed
        code = -privileges.SIGXCPU
    if code < 0:
        # as a shell says it: who waits for this process can tell a signal from an exit all the same
        os._exit(128 - code)
    os._exit(code)


def main() -> None:
    """Raise what walls the kernel of the operating system allows, then execute the command."""
    end = sys.argv.index("--")
    given: dict[str, list[str]] = {}
    for word in sys.argv[1:end]:
        name, _, value = word.partition("=")
        given.setdefault(name, []).append(value)
    command = sys.argv[end + 1 :]
    privileges.die_with(os.getppid())
    own = False
    if _apart():
        pid = os.fork()
        if pid:
            _ended_as(pid, int(given["processor_s"][0]))
        privileges.prctl(privileges.PR_SET_PDEATHSIG, privileges.SIGKILL)
        own = mounts.own_proc()
    writable = given["writable"]
    mounts.read_only(writable, given.get("hidden", []), writable[0])
    landlock.confine(writable, ["/proc"] if own else (), given.get("readable"))
    _limited(resource.RLIMIT_CORE, 0)
    _limited(resource.RLIMIT_FSIZE, int(given["file_bytes"][0]))
    _limited(resource.RLIMIT_NOFILE, 1024)
    _limited(resource.RLIMIT_CPU, int(given["processor_s"][0]))
    if memory := int(given["memory_bytes"][0]):
        _limited(resource.RLIMIT_AS, memory)
    privileges.drop_privileges()
    seccomp.install(None if own else os.getpid(), signals=False)
    try:
        os.execv(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        os._exit(127)


if __name__ == "__main__":
    main()
