"""The white-box part of the red team: kernels made for this verifier by someone who has read it, whose aim is not their
own answer but their neighbours', the server, the parent, the records and the files. Each is tried with every guard up
and with those named taken away: harm must be there only then.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from tests.redteam.hostile import DEFINITION, HONEST

from opforge.core.evidence.verdict import Pass, Timeout, Verdict
from opforge.registry import Home, Registry
from opforge.runner import Isolated, WorkerDied, WorkerLate
from opforge.runner.parent import watchdog
from opforge.runner.walls import processes
from opforge.runner.walls.guards import ALL, Guards
from opforge.runner.walls.process_limits import changed, limits_of
from opforge.verify import CaseCache, verify
from opforge.verify.cases.hidden import EXACT

HANG_S, PATIENCE_S = 1.0, 3.0
"""What a hang takes with the watchdog, for this test, and what the caller waits for without it."""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """What a kernel does when it is called, after it knows `SIBLING`, `SERVER` and `PARENT` (process ids), `VICTIM` (a
    file) and `STORE`.

    harm    which harm is looked for afterwards: see `harms`
    guards  what has to be taken away for it to be done
    """

    name: str
    family: str
    code: str
    harm: str
    guards: tuple[str, ...]


NAMED = ("own_processes", "filtered", "process_limits")
SYSCALL = "ctypes.CDLL(None, use_errno=True).syscall"
ATTACKS = tuple(
    Attack(name=name, family=family, code=code, harm=harm, guards=guards)
    for name, family, harm, guards, code in (
        ("server_affinity", "M3", "server", NAMED, "os.sched_setaffinity(SERVER, {0})"),
        ("server_nice", "M3", "server", NAMED, "os.setpriority(os.PRIO_PROCESS, SERVER, 19)"),
        ("server_idle_class", "M3", "server", NAMED, "os.sched_setscheduler(SERVER, os.SCHED_IDLE, os.sched_param(0))"),
        (
            "server_io_class",
            "M3",
            "server",
            NAMED,
            f"{SYSCALL}(251 if os.uname().machine == 'x86_64' else 30, 1, SERVER, (3 << 13) | 7)",
        ),
        (
            "server_limits",
            "M3",
            "server",
            NAMED,
            "import resource; resource.prlimit(SERVER, resource.RLIMIT_NPROC, (1, 1))",
        ),
        (
            "server_memory_limit",
            "M3",
            "server",
            NAMED,
            "import resource; resource.prlimit(SERVER, resource.RLIMIT_AS, (1 << 20, 1 << 20))",
        ),
        (
            "server_processor_limit",
            "M3",
            "server",
            NAMED,
            "import resource; resource.prlimit(SERVER, resource.RLIMIT_CPU, (1, 1))",
        ),
        (
            "server_out_of_memory_score",
            "M3",
            "server",
            (*NAMED, "read_only", "files"),
            "open(f'/proc/{SERVER}/oom_score_adj', 'w').write('900')",
        ),
        ("user_nice", "M3", "server", NAMED, "os.setpriority(os.PRIO_USER, os.getuid(), 19)"),
        ("sibling_affinity", "M3", "sibling", NAMED, "os.sched_setaffinity(SIBLING, {0})"),
        ("sibling_nice", "M3", "sibling", NAMED, "os.setpriority(os.PRIO_PROCESS, SIBLING, 19)"),
        ("sibling_killed", "M3", "sibling", ("own_processes", "filtered", "files"), "os.kill(SIBLING, signal.SIGKILL)"),
        (
            "sibling_memory",
            "M3",
            "peeked",
            ("own_processes", "filtered", "read_only", "files"),
            "open(f'/proc/{SIBLING}/mem', 'rb', 0).close(); open('peeked', 'w').close()",
        ),
        (
            "sibling_descriptor",
            "M3",
            "peeked",
            ("own_processes", "filtered", "files"),
            "assert os.pidfd_open(SIBLING) >= 0; open('peeked', 'w').close()",
        ),
        (
            "sibling_traced",
            "M3",
            "peeked",
            ("own_processes", "filtered", "files"),
            "assert ctypes.CDLL(None).ptrace(16, SIBLING, 0, 0) == 0; open('peeked', 'w').close()",
        ),
        (
            "sibling_command_line",
            "M3",
            "peeked",
            ("own_processes", "read_only"),
            "assert open(f'/proc/{SIBLING}/cmdline').read(); open('peeked', 'w').close()",
        ),
        (
            "parent_seen",
            "M3",
            "peeked",
            ("own_processes", "read_only"),
            "assert open(f'/proc/{PARENT}/status').read(); open('peeked', 'w').close()",
        ),
        ("file_mode", "M3", "file", ("read_only", "filtered"), "os.chmod(VICTIM, 0o777)"),
        ("file_time", "M3", "file", ("read_only", "filtered"), "os.utime(VICTIM, (1, 1))"),
        ("file_attribute", "M3", "file", ("read_only", "filtered"), "os.setxattr(VICTIM, 'user.redteam', b'left')"),
        ("file_written", "M3", "file", ("read_only", "files", "filtered"), "open(VICTIM, 'a').write('left')"),
        ("file_removed", "M3", "file", ("read_only", "files", "filtered"), "os.unlink(VICTIM)"),
        (
            "bytecode_left",
            "M3",
            "bytecode",
            ("read_only", "files", "filtered"),
            "open(os.path.join(os.path.dirname(VICTIM), 'sitecustomize.py'), 'w').write('raise SystemExit')",
        ),
        (
            "memory_file_left",
            "M3",
            "shm",
            ("read_only", "files", "filtered"),
            "open('/dev/shm/opforge-redteam-walls', 'w').write('left')",
        ),
        (
            "store_locked",
            "M4",
            "store",
            ("read_only",),
            "import fcntl, struct; HELD.append(open(STORE, 'rb', 0)); fcntl.fcntl(HELD[0], fcntl.F_SETLK, "
            "struct.pack('hhqqi', 0, 0, 0, 0, 0))",
        ),
        ("store_read", "M4", "peeked", ("read_only",), "assert open(STORE, 'rb').read(); open('peeked', 'w').close()"),
        (
            "new_namespace",
            "M3",
            "peeked",
            ("filtered",),
            "assert ctypes.CDLL(None).unshare(0x10000000) == 0; open('peeked', 'w').close()",
        ),
        (
            "mounts_again",
            "M3",
            "peeked",
            ("filtered", "files"),
            "assert ctypes.CDLL(None).mount(b'none', b'/', None, 1 << 18, None) == 0; open('peeked', 'w').close()",
        ),
        (
            "keyring",
            "M3",
            "peeked",
            ("filtered",),
            f"assert {SYSCALL}(250 if os.uname().machine == 'x86_64' else 219, 0, -4, 1) > 0; open('peeked', "
            "'w').close()",
        ),
        ("hang", "M4", "waited", ("watchdog",), "time.sleep(60)"),
    )
)


QUICK = ("server_nice", "sibling_nice", "sibling_memory", "file_mode", "store_locked", "new_namespace", "hang")
"""Those of every push: one for each wall."""


@dataclass(kw_only=True)
class Field:
    """Where attacks take place: a home, a store, a file, and hosts by the guards that are down."""

    folder: Path
    hosts: dict[Guards, Isolated] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.victims = self.folder / "victims"
        self.victims.mkdir(parents=True)
        self.store = self.folder / "records.sqlite"
        with contextlib.closing(sqlite3.connect(self.store)) as made, made:
            made.execute("CREATE TABLE IF NOT EXISTS kept (value)")
        self.environment = patch.dict(os.environ, {"OPFORGE_STORE": str(self.store)})
        self.environment.start()

    def host(self, guards: Guards) -> Isolated:
        if guards not in self.hosts:
            shared = next(iter(self.hosts.values()), None)
            self.hosts[guards] = Isolated(guards=guards, servers=shared.servers if shared else None)
        return self.hosts[guards]

    def close(self) -> None:
        self.environment.stop()
        for host in self.hosts.values():
            host.close()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Whether an attack did its harm with every guard up, and with its guards down."""

    attack: Attack
    harmed: bool
    harms_without: bool
    words: str


def try_all(folder: Path, chosen: Sequence[Attack] = ATTACKS) -> Iterator[Outcome]:
    """Each attack, guarded and not."""
    place = Field(folder=folder)
    try:
        for attack in chosen:
            harmed, words = _tried(place, attack, ALL)
            without, _ = _tried(place, attack, ALL.without(*attack.guards))
            yield Outcome(attack=attack, harmed=harmed, harms_without=without, words=words)
    finally:
        place.close()


def _tried(place: Field, attack: Attack, guards: Guards) -> tuple[bool, str]:
    """Whether harm was done, and the verdict's words."""
    victim = place.victims / "kernel.py"
    victim.write_text("honest = True\n")
    victim.chmod(0o644)
    os.utime(victim, (10**9, 10**9))
    host = place.host(guards)
    sibling = host.worker({})
    server = next(iter(host.servers.values()))
    known = {
        "SIBLING": getattr(sibling, "pid", 0),
        "SERVER": server.pid,
        "PARENT": os.getpid(),
        "VICTIM": str(victim),
        "STORE": str(place.store),
        "HELD": [],
    }
    if not guards.own_processes:
        # as the attacker's own namespace numbers them: all workers are the server's children there
        inner = {"SIBLING": getattr(sibling, "inner", 0), "SERVER": 1 if server.level.pid_namespace else server.pid}
        known |= {name: value for name, value in inner.items() if "/proc/" not in attack.code}
    home = place.folder / f"home_{attack.name}_{len(list(place.folder.iterdir()))}"
    (home / "hostile").mkdir(parents=True)
    lines = "\n".join(f"{name} = {value!r}" for name, value in known.items())
    source = f"import ctypes\nimport os\nimport signal\nimport time\n\n{lines}\nTOLD = []\n\n\n"
    source += f"def run(x):\n    if not TOLD:\n        TOLD.append(1)\n        {attack.code}\n    return 2 * x\n"
    (home / "hostile" / "torch_guest.py").write_text(source)
    (home / "hostile" / "torch_honest.py").write_text(HONEST)
    (home / "hostile" / "op.py").write_text(DEFINITION.replace("NAMES", "['torch_guest', 'torch_honest']"))
    before = {
        "server": limits_of(server.pid),
        "sibling": limits_of(sibling.pid),
        "parent": limits_of(os.getpid()),
        "file": _state(victim),
    }  # type: ignore[attr-defined]
    verdict = _judged(Registry((Home(home, "red team"),)), host, place, attack)
    words = f"{type(verdict).__name__} {getattr(verdict, 'reason', '')}"[:160]
    harmed = {
        "server": lambda: server.closed or bool(changed(before["server"], limits_of(server.pid))),
        "sibling": lambda: not processes.alive(sibling.pid) or bool(changed(before["sibling"], limits_of(sibling.pid))),
        "parent": lambda: bool(changed(before["parent"], limits_of(os.getpid()))),
        "file": lambda: _state(victim) != before["file"],
        "bytecode": lambda: (place.victims / "sitecustomize.py").exists(),
        "shm": lambda: Path("/dev/shm/opforge-redteam-walls").exists(),
        "peeked": lambda: isinstance(verdict, Pass),
        "store": was_locked,
        "waited": lambda: not isinstance(verdict, Timeout) or verdict.limit_s >= PATIENCE_S,
    }[attack.harm]()
    _repair(place, server, sibling, before)
    return harmed, words


LOCKED: list[bool] = []


def was_locked() -> bool:
    """Whether the store could not be written while the attacker lived."""
    found = bool(LOCKED and LOCKED[-1])
    LOCKED.clear()
    return found


def _judged(registry: Registry, host: Isolated, place: Field, attack: Attack) -> Verdict:
    hangs = attack.harm == "waited"
    bench = CaseCache(
        registry=registry,
        operator=registry.operator("hostile"),
        host=host,
        device="cpu",
        run_limit_s=PATIENCE_S if hangs else 10.0,
    )
    try:
        with contextlib.ExitStack() as stack:
            if attack.harm == "store":
                stack.enter_context(patch("opforge.verify.judging.run_case.judge", _judge_with_store(place)))
            if hangs:
                stack.enter_context(patch.object(watchdog, "HANG_S", HANG_S))
            return verify(bench, registry.implementation("hostile", "torch_guest"), "float32", effort=EXACT)
    finally:
        bench.close()


def _judge_with_store(place: Field) -> Callable[..., object]:
    """Judges, and while the kernel is there to hold its lock, writes a record."""
    from opforge.verify.judging.run_case import judge

    def judged(*args: object) -> object:
        with contextlib.closing(sqlite3.connect(place.store, timeout=0.2)) as store:
            try:
                with store:
                    store.execute("INSERT INTO kept VALUES (1)")
                LOCKED.append(False)
            except sqlite3.OperationalError:
                LOCKED.append(True)
        return judge(*args)  # type: ignore[arg-type]

    return judged


def _state(path: Path) -> tuple[object, ...]:
    if not path.exists():
        return ("gone",)
    status = path.stat()
    return status.st_mode, status.st_mtime_ns, status.st_uid, path.read_bytes(), tuple(os.listxattr(path))


def _repair(place: Field, server: object, sibling: object, before: dict[str, object]) -> None:
    """Take away what an attack left, so that the next one begins with nothing."""
    with contextlib.suppress(WorkerDied, WorkerLate):
        sibling.close()  # type: ignore[attr-defined]
    server_now, server_then = limits_of(server.pid), before["server"]  # type: ignore[attr-defined]
    if changed(server_then, server_now):  # type: ignore[arg-type]
        server.close()  # type: ignore[attr-defined]
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, before["parent"].nice)  # type: ignore[attr-defined]
    for path in (place.victims / "sitecustomize.py", Path("/dev/shm/opforge-redteam-walls")):
        path.unlink(missing_ok=True)
