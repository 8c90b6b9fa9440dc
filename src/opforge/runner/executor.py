"""Does what the parent asks, in whatever process it is: binds, runs, samples. It decides nothing and judges nothing."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from opforge.backends import backend, cache
from opforge.core.errors import EnvironmentLacks, NotNow, OpforgeError
from opforge.core.implementation import Config, Implementation, Rejected
from opforge.registry import Home, Registry
from opforge.runner import device_clocks, sampling, sandbox
from opforge.runner.arena import Arena, view
from opforge.runner.guards import ALL, Guards, Limits
from opforge.runner.launch import LIBRARY, ContractBroken, Launch, bind, synchronize
from opforge.runner.witness import replaced, snapshot, traced

# these compile before any of the kernel's code runs, or compile nothing; every other backend compiles when it is called
COMPILED_FIRST = ("torch", "cpp", "cuda")
WORTH_PINNING = 1 << 25
SHORT = re.compile(
    "No space left on device|Disk quota exceeded|Cannot allocate memory|Resource temporarily unavailable|Too many open files|virtual memory exhausted"
    "|out of memory allocating|Killed signal terminated program \\w*|died due to signal 9"
)
"""What compilers say when the machine is short of something."""


class Executor:
    """Launches by number, and the arenas they read and write.

    scratch   the worker's own folder; None in the caller's process, which is not confined
    """

    def __init__(self, *, scratch: Path | None = None, limits: Limits | None = None, guards: Guards = ALL) -> None:
        self.launches: dict[int, tuple[Launch, Arena, Any]] = {}
        self.rotations: dict[int, sampling.Rotation] = {}
        self.held: dict[int, Mapping[str, Any]] = {}
        self.next = 0
        self.scratch = scratch
        self.limits = limits
        self.guards = guards
        self.sealed = scratch is None
        self.library = True
        self.confined = 0
        self.peak_reset = sampling.peak_reset() if scratch is not None else None
        self.before = snapshot() if guards.snapshot and scratch is not None else {}

    def handle(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> dict[str, Any]:
        """The answer to one message. Whatever a kernel raises becomes {"status": "failed"}."""
        do = {
            "bind": self.bind,
            "run": self.run,
            "sample": self.sample,
            "collect": self.collect,
            "release": self.release,
            "overhead": self.overhead,
            "launch_cost": self.launch_cost,
            "memory": self.memory,
            "work": self.work,
            "replay": self.replay,
        }
        try:
            answer = do[message["do"]](message, fds)
            found = replaced(self.before)
            if found:
                return {"status": "failed", "reason": f"replaced {', '.join(found[:5])}; a kernel must leave clocks and other people's functions alone"}
            return answer
        except EnvironmentLacks as error:
            return {"status": "lacks", "reason": str(error), "later": isinstance(error, NotNow)}
        except Exception as error:  # noqa: BLE001 - the boundary to foreign code: every exception becomes a verdict in the parent
            trace = "".join(traceback.format_exception(error)[-4:])
            return {"status": "failed", "reason": f"{type(error).__name__}: {error}", "trace": trace[-4000:]}

    def bind(self, message: Mapping[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """Map the arena, bind the implementation to its tensors, compile what needs compiling."""
        arena = Arena.attach(message["arena"], fds[0])
        _require(message["device"])
        if message["device"] != "cpu" and arena.size >= WORTH_PINNING:
            arena.pin()
        # the parent names every home, the package's and the plugins' too: another revision of them may be what is asked for
        registry = Registry(tuple(Home(Path(home), "parent") for home in message["homes"]))
        operator = registry.operator(message["operator"])
        implementation = registry.implementation(message["operator"], message["implementation"])
        axes = {name: tuple(value) if isinstance(value, list) else value for name, value in message["axes"].items()}
        config = None if message["config"] is None else Config(tuple((name, value) for name, value in message["config"]))

        def bind_to(memory: Any) -> Launch | Rejected:
            tensors = {slot.name: view(memory, slot) for slot in arena.slots}
            inputs = {spec.name: tensors[spec.name] for spec in operator.inputs}
            outputs = {spec.name: tensors[spec.name] for spec in operator.outputs}
            return bind(operator, implementation, inputs, outputs, message["scalars"], axes, message["dtype"], config, self.guards)

        def run_on(memory: Any) -> Callable[[], object]:
            again = bind_to(memory)
            assert not isinstance(again, Rejected)  # it took the same call on other memory
            return again.run

        self.seal(implementation, config, message["device"], message["homes"])
        whole = arena.bytes()
        if message["device"] != "cpu":
            whole = self.uploaded(whole, message["device"])
        launch = bind_to(whole)
        if isinstance(launch, Rejected):
            arena.close()
            return {"status": "rejected", "reason": launch.reason}
        self.next += 1
        self.launches[self.next] = (launch, arena, whole)
        self.rotations[self.next] = sampling.Rotation(launch.run, whole, run_on, self.guards.cold)
        return {"status": "bound", "launch": self.next, "notes": list(launch.notes), "confined": self.confined}

    def uploaded(self, whole: Any, device: str) -> Any:
        """The arena's bytes in a device's memory. Raises NotNow where there is no room before any kernel has run here: others have taken it."""
        try:
            return whole.to(device)
        except RuntimeError as error:
            if self.next or "out of memory" not in str(error).lower():
                raise
            raise NotNow(f"the device has no room for {whole.numel()} bytes beside what others hold; run it again when they are done ({str(error).splitlines()[0]})") from error

    def seal(self, implementation: Implementation, config: Config | None, device: str, homes: Sequence[str]) -> None:
        """Once, before any of the kernel's own code runs: compile what can be compiled, then give up the right to write."""
        self.library = implementation.backend in LIBRARY
        if self.sealed:
            return
        assert self.scratch is not None and self.limits is not None
        self.sealed = True
        build = getattr(backend(implementation.backend), "build", None)
        if build is not None:
            _compiled(lambda: build(implementation, implementation.default if config is None else config, device))
        writable = [self.scratch]
        stood = implementation.backend == "triton" and device == "cpu"
        if implementation.backend not in COMPILED_FIRST and not stood:
            # compilers that run at the first call keep what they make in a folder that only kernels of the same homes share
            folder = cache.jit_folder(homes, implementation.backend)
            folder.mkdir(parents=True, exist_ok=True)
            for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TILELANG_CACHE_DIR"):
                os.environ[name] = str(folder / name.split("_")[0].lower())
            writable.append(folder)
        sandbox.limit(self.limits, host_memory=device == "cpu")
        if self.guards.files and sandbox.wanted() == "full":
            self.confined = sandbox.confine_writes(writable)

    def run(self, message: Mapping[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """Take the arena's bytes as they are now, run once, put the outputs back. The answer counts the tensor operations
        of PyTorch that a kernel of another backend called."""
        number = message["launch"]
        launch, arena, whole = self.launches[number]
        if message.get("upload", True) and whole.device.type != "cpu":
            whole.copy_(arena.bytes())
        operations: dict[str, int] = {}
        if self.library or not self.guards.trace:
            launch.run()
        else:
            operations = traced(launch.run)
        answer = self.collect(message, fds)
        if self.guards.new_memory:
            self._hold(number, launch, whole)
        return {**answer, "operations": operations}

    def _hold(self, number: int, launch: Launch, whole: Any) -> None:
        """Keep a result until the next one: memory that is handed out twice would change under its first owner."""
        last, mine = self.held.get(number, {}), whole.untyped_storage().data_ptr()
        outputs = {name: tensor for name, tensor in launch.read().items() if tensor.numel() and tensor.untyped_storage().data_ptr() != mine}
        for name, tensor in outputs.items():
            if name in last and last[name].untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
                raise ContractBroken(f"{launch.implementation} returned {name} in the memory of its previous result, which its caller may still hold")
        self.held[number] = outputs

    def collect(self, message: Mapping[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """Put what the last run left into the arena."""
        launch, arena, whole = self.launches[message["launch"]]
        outputs = launch.read()
        synchronize(whole)
        if whole.device.type != "cpu":
            arena.bytes().copy_(whole)
        here = arena.tensors("output")
        # a kernel that writes where it is told to has already done so
        places = {slot.name: whole.data_ptr() + slot.offset for slot in arena.slots}
        for name, tensor in outputs.items():
            if tensor.data_ptr() != places[name]:
                here[name].copy_(tensor)
        return {"status": "ok"}

    def sample(self, message: Mapping[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """Samples in seconds per call, by the clock the parent chose."""
        _, arena, whole = self.launches[message["launch"]]
        self.held.pop(message["launch"], None)
        if message.get("upload") and whole.device.type != "cpu":
            whole.copy_(arena.bytes())
        return sampling.sample(self.rotations[message["launch"]], message)

    def launch_cost(self, message: Mapping[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """Seconds the host spends to start one call of an accelerator's kernel."""
        launch, _, _ = self.launches[message["launch"]]
        return {"status": "ok", "samples": sampling.launch_cost(launch.run, message["batch"], message["count"])}

    def memory(self, message: Mapping[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """Bytes that one call takes beyond the arena, at its peak; absent where it cannot be told."""
        launch, _, whole = self.launches[message["launch"]]
        found = sampling.extra_bytes(launch.run, whole, self.peak_reset)
        return {"status": "ok"} if found is None else {"status": "ok", "bytes": found}

    def work(self, message: Mapping[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """What the device does for a number of calls in a row."""
        launch, _, _ = self.launches[message["launch"]]
        self.held.pop(message["launch"], None)
        return sampling.work(launch.run, message["count"])

    def replay(self, message: Mapping[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """Capture the call in a CUDA graph, take the arena's bytes as they are now, replay the graph, put the outputs back."""
        launch, arena, whole = self.launches[message["launch"]]
        self.held.pop(message["launch"], None)
        try:
            again = device_clocks.captured(launch.run, 1)
        except device_clocks.ClockUnfit as error:
            return {"status": "unfit", "reason": str(error)}
        whole.copy_(arena.bytes())
        again()
        return self.collect(message, fds)

    def overhead(self, message: Mapping[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """What the sampling loop costs, the clocks' resolution, and how many threads CPU kernels use here."""
        import torch

        return sampling.about_clocks(message["batch"], message["count"], torch.device(message.get("device", "cpu")))

    def release(self, message: Mapping[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        """Forget a launch and give its memory back."""
        _, arena, _ = self.launches.pop(message["launch"])
        self.held.pop(message["launch"], None)
        self.rotations.pop(message["launch"])
        arena.close()
        return {"status": "ok"}


def _compiled(build: Callable[[], object]) -> None:
    """Compile, before any code of the kernel has run. Raises NotNow where it is the machine that failed: what is told of a full disk, or of a compiler
    that was killed for its memory, is told of no source."""
    try:
        build()
    except (OSError, MemoryError) as error:
        raise NotNow(f"it could not be compiled here ({type(error).__name__}: {error}). Free some space or memory, and run it again.") from error
    except OpforgeError as error:
        short = SHORT.search(str(error))
        if short is None:
            raise
        raise NotNow(f"it could not be compiled here (the compiler: {short[0]}). Free some space or memory, and run it again.") from error


def _require(device: str) -> None:
    """Raises EnvironmentLacks where this process cannot reach a CUDA device that the parent can: no kernel is to be blamed for that."""
    if device != "cuda":
        return
    import torch

    if torch.cuda.is_available():
        return
    if sandbox.wanted() == "full":
        raise EnvironmentLacks(f"the driver reaches no CUDA device inside the namespaces of {sandbox.ISOLATION}=full on this machine; use {sandbox.ISOLATION}=basic")
    raise EnvironmentLacks("torch sees no CUDA device in the worker; see what is here with: opforge doctor")
