"""A filter on system calls for a worker: what no toolchain needs and an attacker would like is refused with EPERM
(seccomp-BPF, Linux).

Where nothing keeps the worker from naming other processes, calls that change how a process is scheduled, limited or
signalled are refused for every process but itself. The filter holds for everything that the worker starts, and cannot
be taken back.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # no import at run time: inside.py is waited for
    from collections.abc import Mapping, Sequence

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
ALLOW, REFUSE, ABSENT = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
X32 = 0x40000000
NEW_NAMESPACES = 0x7E020080
"""CLONE_NEWUSER, NEWPID, NEWNET, NEWIPC, NEWUTS, NEWCGROUP, NEWNS and NEWTIME."""

# numbers of (x86-64, arm64); from asm/unistd_64.h and asm-generic/unistd.h
_REFUSED = """
ptrace 101 117          process_vm_readv 310 270   process_vm_writev 311 271  kcmp 312 272             pidfd_getfd
438 438
process_madvise 440 440 add_key 248 217            request_key 249 218        keyctl 250 219           bpf 321 280
perf_event_open 298 241 userfaultfd 323 282        mount 165 40               umount2 166 39           pivot_root 155 41
move_mount 429 429      open_tree 428 428          fsopen 430 430             fsconfig 431 431         fsmount 432 432
fspick 433 433          mount_setattr 442 442      unshare 272 97             setns 308 268            chroot 161 51
swapon 167 224          swapoff 168 225            reboot 169 142             init_module 175 105
finit_module 313 273
delete_module 176 106   kexec_load 246 104         kexec_file_load 320 294    quotactl 179 60          acct 163 89
settimeofday 164 170    clock_settime 227 112      adjtimex 159 171           clock_adjtime 305 266    sethostname
170 161
setdomainname 171 162   open_by_handle_at 304 265  name_to_handle_at 303 264  fanotify_init 300 262    lookup_dcookie
212 18
migrate_pages 256 238   move_pages 279 239         vhangup 153 58             syslog 103 116           nfsservctl 180 42
io_uring_setup 425 425  io_uring_enter 426 426     io_uring_register 427 427  process_mrelease 448 448
"""
"""io_uring is among them because what is asked through it passes by this filter."""
_FIRST_IS_PID = """
sched_setaffinity 203 122  sched_setparam 142 118  sched_setscheduler 144 119  sched_setattr 314 274  prlimit64 302 261
"""
_SECOND_IS_PID = "setpriority 141 140 0   ioprio_set 251 30 1"
"""With the value of the first argument that says that the second is a process."""
_SIGNALS = (
    "kill 62 129   tkill 200 130   tgkill 234 131   rt_sigqueueinfo 129 138   rt_tgsigqueueinfo 297 240   "
    "pidfd_send_signal 424 424"
)

ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
CLONE, CLONE3 = (56, 220), (435, 435)


def _numbers(table: str, column: int, width: int = 3) -> list[tuple[int, tuple[int, ...]]]:
    """The calls of a table on one architecture, each with what stands behind its numbers."""
    fields = table.split()
    rows = [fields[start : start + width] for start in range(0, len(fields), width)]
    return [(int(row[1 + column]), tuple(map(int, row[3:]))) for row in rows]


def _step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)


def _low(argument: int) -> int:
    """Where the low half of an argument lies in what the filter sees; both architectures are little-endian."""
    return ARGUMENTS + 8 * argument


def program(machine: str, own_pid: int | None, *, signals: bool) -> bytes:
    """The filter's instructions for a machine ("x86_64", "aarch64").

    own_pid   the only process that calls about processes may name; None where a namespace sees to that already
    signals   True: signals too may be sent to this process and its group alone
    """
    architecture, column = ARCHITECTURES[machine]
    steps = [_step(LOAD, ARCHITECTURE), _step(EQUAL, architecture, 1, 0), _step(RETURN, ABSENT), _step(LOAD, NUMBER)]
    if machine == "x86_64":
        steps += [_step(AT_LEAST, X32, 0, 1), _step(RETURN, ABSENT)]
    for number, _ in _numbers(_REFUSED, column):
        steps += [_step(EQUAL, number, 0, 1), _step(RETURN, REFUSE)]
    # glibc falls back to clone, whose flags can be looked at
    steps += [_step(EQUAL, CLONE3[column], 0, 1), _step(RETURN, ABSENT)]
    steps += _branch(
        CLONE[column],
        [_step(LOAD, _low(0)), _step(ANY_BIT, NEW_NAMESPACES, 0, 1), _step(RETURN, REFUSE), _step(RETURN, ALLOW)],
    )
    if own_pid is not None:
        for number, _ in _numbers(_FIRST_IS_PID, column):
            steps += _branch(number, _among(0, (0, own_pid)))
        for number, (which,) in _numbers(_SECOND_IS_PID, column, 4):
            steps += _branch(
                number,
                [_step(LOAD, _low(0)), _step(EQUAL, which, 1, 0), _step(RETURN, REFUSE), *_among(1, (0, own_pid))],
            )
        for number, _ in _numbers(_SIGNALS, column) if signals else ():
            steps += _branch(number, _among(0, (0, own_pid, -own_pid & 0xFFFFFFFF)))
    return b"".join((*steps, _step(RETURN, ALLOW)))


def _branch(number: int, body: Sequence[bytes]) -> list[bytes]:
    """What to do for one call; every way through `body` ends in a return."""
    return [_step(EQUAL, number, 0, len(body)), *body]


def _among(argument: int, allowed: Sequence[int]) -> list[bytes]:
    """Allow the call where an argument is one of these, else refuse it."""
    tests = [_step(EQUAL, value, len(allowed) - place, 0) for place, value in enumerate(allowed)]
    return [_step(LOAD, _low(argument)), *tests, _step(RETURN, REFUSE), _step(RETURN, ALLOW)]


def install(own_pid: int | None, *, signals: bool = False, machine: str = os.uname().machine) -> bool:
    """Filter this thread's system calls from now on, and those of all that it starts; whether the kernel took it."""
    if sys.platform != "linux" or machine not in ARCHITECTURES:
        return False
    code = program(machine, own_pid, signals=signals)
    held = ctypes.create_string_buffer(code, len(code))
    described = ctypes.create_string_buffer(struct.pack("@HP", len(code) // 8, ctypes.addressof(held)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0) != 0:
        return False
    return int(libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), described, 0, 0)) == 0


def refused_calls(machine: str) -> Mapping[str, int]:
    """The calls that are always refused, by name, with their numbers on a machine."""
    column = ARCHITECTURES[machine][1]
    fields = _REFUSED.split()
    return {fields[start]: int(fields[start + 1 + column]) for start in range(0, len(fields), 3)}
