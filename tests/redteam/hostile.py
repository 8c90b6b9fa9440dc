"""Kernels that die, hang, flood or hide. Each costs one verdict; the next one, on an honest kernel, must be right, and
nothing may be left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from opforge.core.evidence.verdict import FAILURES, Pass, Verdict
from opforge.registry import Home, Registry
from opforge.runner import Isolated
from opforge.runner.walls import processes
from opforge.runner.walls.guards import Limits
from opforge.verify import CaseCache, verify
from opforge.verify.cases.hidden import EXACT

RUN_LIMIT_S = 2.0
LIMITS = Limits(memory_bytes=512 << 20, processes=16, file_bytes=8 << 20, descriptors=256)

DEFINITION = '''"""y = 2 x."""
from opforge.core.operator import Case, Operator, TensorSpec

operator = Operator(
    name="hostile", about="y = 2 x",
    inputs=(TensorSpec(name="x", shape="n"),), outputs=(TensorSpec(name="y", shape="n"),),
    reference=lambda x: 2 * x, flops="n", dtypes=("float32",), cases=(Case(name="small", axes={"n": 64}, why="small"),),
    implementations=tuple(NAMES),
)
'''
HONEST = "def run(x):\n    return 2 * x\n"

SOCKETS = """
def sockets():
    return [fd for fd in range(3, 40) if os.path.exists(f'/proc/self/fd/{fd}')
    and 'socket' in os.readlink(f'/proc/self/fd/{fd}')]

"""

# what is done when the kernel is called; afterwards it answers rightly, if it still can
AT_CALL = {
    "hangs": "while True: pass",
    "hangs_in_c": "ctypes.PyDLL(None).sleep(60)",
    "hangs_in_regex": "import re; re.match(r'(a+)+$', 'a' * 60 + 'b')",
    "hangs_on_a_lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "exits_0": "os._exit(0)",
    "exits_1": "os._exit(1)",
    "system_exit": "sys.exit(0)",
    "keyboard_interrupt": "raise KeyboardInterrupt",
    "base_exception": "raise type('Strange', (BaseException,), {})()",
    "exception_without_words": "raise type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})()",
    "kills_itself": "os.kill(os.getpid(), signal.SIGKILL)",
    "stops_itself": "os.kill(os.getpid(), signal.SIGSTOP); time.sleep(60)",
    "terminates_itself": "os.kill(os.getpid(), signal.SIGTERM)",
    "aborts": "os.abort()",
    "segfaults": "ctypes.string_at(0)",
    "floating_point_exception": "os.kill(os.getpid(), signal.SIGFPE)",
    "illegal_instruction": "os.kill(os.getpid(), signal.SIGILL)",
    "alarm": "signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(60)",
    "recursion": "def deep(n): return deep(n + 1)\n    deep(0)",
    "memory_bomb": "kept = [bytearray(64 << 20) for _ in range(100)]",
    "memory_bomb_tensors": "kept = [torch.ones(16 << 20) for _ in range(100)]",
    "memory_bomb_mappings": "import mmap; kept = [mmap.mmap(-1, 64 << 20) for _ in range(100)]; [part.write(bytes(64 "
    "<< 20)) for part in kept]",
    "fork_bomb": "[os.fork() for _ in range(7)]; time.sleep(60)",
    "thread_bomb": "[threading.Thread(target=time.sleep, args=(60,)).start() for _ in range(500)]",
    "child": "os.fork() or time.sleep(60)",
    "daemon": "os.fork() or (os.setsid(), os.fork() and os._exit(0), time.sleep(60))",
    "deaf_daemon": "[signal.signal(number, signal.SIG_IGN) for number in (1, 2, 15)]; os.fork() or (os.setsid(), "
    "os.fork() and os._exit(0), time.sleep(60))",
    "subprocess": "import subprocess; subprocess.Popen(['sleep', '60'], start_new_session=True)",
    "zombies": "[os.fork() or os._exit(0) for _ in range(5)]",
    "floods_stdout": "[os.write(1, b'x' * (1 << 20)) for _ in range(50)]",
    "floods_stderr": "[sys.stderr.write('y' * (1 << 20)) for _ in range(50)]",
    "descriptors": "kept = [os.open('/dev/null', os.O_RDONLY) for _ in range(5000)]",
    "closes_everything": "os.closerange(3, 256)",
    "shuts_stdout": "os.close(1); os.close(2)",
    "fills_the_disk": "open('large', 'wb').write(bytes(64 << 20))",
    "shared_memory": "from multiprocessing.shared_memory import SharedMemory; kept = SharedMemory(create=True, "
    "size=1 << 20)",
    "shared_memory_file": "open('/dev/shm/opforge-redteam-left', 'wb').write(b'left')",
    "kills_its_server": "os.kill(os.getppid(), signal.SIGKILL); time.sleep(0.2)",
    "stops_its_server": "os.kill(os.getppid(), signal.SIGSTOP); time.sleep(0.2)",
    "writes_garbage": "[os.write(fd, b'\\\\xff' * 4096) for fd in sockets()]",
    "announces_much": "[os.write(fd, b'\\\\x7f\\\\xff\\\\xff\\\\xff') for fd in sockets()]",
    "nested_answer": "[os.write(fd, (99999).to_bytes(4, 'big') + b'[' * 99999) for fd in sockets()]",
    "network": "import socket; socket.create_connection(('127.0.0.1', 9), timeout=1)",
    "deletes_its_folder": "import shutil; shutil.rmtree(os.getcwd())",
    "returns_nothing": "return None",
    "returns_a_lie": "return type('Tensor', (), {'shape': (64,), 'dtype': torch.float32})()",
}
AT_IMPORT = {
    "import_hangs": "while True: pass",
    "import_exits": "os._exit(0)",
    "import_segfaults": "ctypes.string_at(0)",
    "import_bombs": "kept = [bytearray(64 << 20) for _ in range(100)]",
    "import_daemon": "os.fork() or (os.setsid(), os.fork() and os._exit(0), time.sleep(60))",
    "import_floods": "[os.write(1, b'x' * (1 << 20)) for _ in range(50)]",
}
HARMLESS = (
    "zombies",
    "floods_stdout",
    "floods_stderr",
    "shuts_stdout",
    "deletes_its_folder",
    "import_floods",
    "thread_bomb",
    "stops_its_server",
    "kills_its_server",
)
"""May Pass: what they do is kept away from everybody else, and their answer is right."""
NEED_CONFINEMENT = ("shared_memory", "shared_memory_file", "network")
"""Kept from their aim by Landlock alone."""


@dataclass(frozen=True, kw_only=True)
class Survival:
    """One hostile kernel: its verdict, the next one on an honest kernel, and what it left."""

    name: str
    verdict: str
    right: bool
    next_right: bool
    orphans: int
    seconds: float


def write_home(folder: Path) -> Registry:
    """A home with every hostile kernel and an honest one."""
    place = folder / "hostile"
    place.mkdir(parents=True)
    imports = (
        "import ctypes\nimport os\nimport signal\nimport sys\nimport threading\nimport time\n\nimport torch\n\n"
        + SOCKETS
    )
    sources = {
        f"torch_{name}": f"{imports}\ndef run(x):\n    {code}\n    return 2 * x\n" for name, code in AT_CALL.items()
    }
    sources |= {f"torch_{name}": f"{imports}{code}\n\n{HONEST}" for name, code in AT_IMPORT.items()}
    sources["torch_honest"] = HONEST
    for name, text in sources.items():
        (place / f"{name}.py").write_text(text.replace("\\\\x", "\\x"), encoding="utf-8")
    (place / "op.py").write_text(DEFINITION.replace("NAMES", repr(sorted(sources))), encoding="utf-8")
    return Registry((Home(folder, "red team"),))


def judged(registry: Registry, host: Isolated, name: str) -> Verdict:
    """The verdict on one kernel of the home."""
    bench = CaseCache(
        registry=registry,
        operator=registry.operator("hostile"),
        host=host,
        device="cpu",
        bind_limit_s=RUN_LIMIT_S,
        run_limit_s=RUN_LIMIT_S,
    )
    try:
        return verify(bench, registry.implementation("hostile", name), "float32", effort=EXACT)
    finally:
        bench.close()


def attack_all(folder: Path, names: Sequence[str] = ()) -> Iterator[Survival]:
    """Each hostile kernel, and after each the honest one."""
    registry = write_home(folder)
    with Isolated(limits=LIMITS) as host:
        judged(registry, host, "torch_honest")
        for name in names or (*AT_CALL, *AT_IMPORT):
            began = time.perf_counter()
            verdict = judged(registry, host, f"torch_{name}")
            following = judged(registry, host, "torch_honest")
            left = [
                pid
                for server in host.servers.values()
                for pid in processes.children(server.pid)
                if pid not in server.helpers and processes.alive(pid)
            ]
            right = isinstance(verdict, FAILURES) or (name in HARMLESS and isinstance(verdict, Pass))
            yield Survival(
                name=name,
                verdict=type(verdict).__name__,
                right=right,
                next_right=isinstance(following, Pass),
                orphans=len(left),
                seconds=time.perf_counter() - began,
            )


PARENT = """
import sys
from pathlib import Path
from opforge.registry import Home, Registry
from opforge.runner import Isolated
from tests.redteam.hostile import judged
registry = Registry((Home(Path(sys.argv[1]), "red team"),))
with Isolated() as host:
    print("started", flush=True)
    judged(registry, host, sys.argv[2])
"""


def survivors_of_a_dead_parent(folder: Path, name: str) -> int:
    """Kill a verifying process without warning while `name` runs; how many of its processes are there three seconds
    later.
    """
    mark = uuid.uuid4().hex
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}", "PYTHON_REDTEAM_MARK": mark}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(folder), f"torch_{name}"], env=environment, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    parent.stdout.readline()
    for _ in range(200):
        time.sleep(0.05)
        # the parent, the server inside and outside its namespace, its helper; the first process of the worker's
        # namespace, and the worker
        if len(_marked(mark)) >= 6:
            break
    time.sleep(0.3)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    for _ in range(60):
        time.sleep(0.05)
        if not _marked(mark):
            break
    return len(_marked(mark))


def _marked(mark: str) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (place / "environ").read_bytes() and processes.alive(int(place.name)):
                found.append(int(place.name))
        except OSError:
            continue  # it ended, or is not ours
    return found


def shared_memory() -> set[str]:
    """Everything of this user that outlives processes: POSIX shared memory, System V segments. A database server beside
    the
    tests has some of its own, as another user."""
    mine = os.getuid()
    posix = (
        {str(path) for path in Path("/dev/shm").iterdir() if _owner(path) == mine}
        if Path("/dev/shm").is_dir()
        else set()
    )
    table = Path("/proc/sysvipc/shm")
    rows = [line.split() for line in table.read_text().splitlines()[1:]] if table.exists() else []
    # the number of a segment and its owner; the rest of a row changes with every use
    return posix | {f"segment {row[1]}" for row in rows if int(row[7]) == mine}


def _owner(path: Path) -> int | None:
    try:
        return path.stat().st_uid
    except FileNotFoundError:
        return None
