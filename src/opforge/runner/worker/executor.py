"""Does what the parent asks, in whatever process it is: binds, runs, samples. It decides nothing and judges nothing."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from opforge.backends import backend, cache
from opforge.backends.shared_code import files_of, source_sha256
from opforge.core.definition.call_form import formed
from opforge.core.definition.implementation import Config, Implementation, Rejected
from opforge.core.language import spans
from opforge.core.language.errors import EnvironmentLacks, NotNow, OpforgeError
from opforge.runner.walls import confinement, sandbox
from opforge.runner.walls.guards import ALL, Guards, Limits
from opforge.runner.walls.tamper_detection import Snapshot, replaced, snapshot
from opforge.runner.wire.messages import (
    OTHER,
    Answer,
    Bind,
    Clocks,
    Collect,
    DeviceWork,
    Done,
    Extra,
    Failed,
    GetContext,
    HostCost,
    Lacks,
    LaunchBound,
    LaunchCost,
    Launched,
    Memory,
    OnTerms,
    Overhead,
    Refused,
    Release,
    Replay,
    Run,
    Sample,
    Samples,
    Spare,
    Terms,
    Unfit,
    Unlike,
    Work,
)
from opforge.runner.wire.protocol import answered, question_of
from opforge.runner.worker import device_clocks, raised, sampling
from opforge.runner.worker.arena import Arena
from opforge.runner.worker.compiled_first import compiled, no_fault_of_its_arithmetic
from opforge.runner.worker.device_kernels import DeviceWatch
from opforge.runner.worker.dispatch_trace import traced
from opforge.runner.worker.held_results import hold
from opforge.runner.worker.interpreted_stores import interpreted_notes
from opforge.runner.worker.launch import LIBRARY, Launch, bind, synchronize
from opforge.runner.worker.placement import Placement
from opforge.runner.worker.read_once import ReadOnce
from opforge.runner.worker.result_memory import ResultMemory
from opforge.runner.worker.together import together
from opforge.runner.worker.write_ledger import Ledger

# these compile before any of the kernel's code runs, or compile nothing; every other backend compiles when it is called
COMPILED_FIRST = ("torch", "cpp", "cuda")
INDUCTOR_FOLDER = "TORCHINDUCTOR_CACHE_DIR"
WORTH_PINNING = 1 << 25


class Executor:
    """Launches by number, and the arenas they read and write.

    scratch   the worker's own folder; None in the caller's process, which is not confined
    """

    def __init__(self, *, scratch: Path | None = None, limits: Limits | None = None, guards: Guards = ALL) -> None:
        self.launches: dict[int, tuple[Launch, Arena, Any]] = {}
        self.placements: dict[int, Placement] = {}
        self.rotations: dict[int, sampling.Rotation] = {}
        self.held: dict[int, list[Mapping[str, Any]]] = {}
        self.results = ResultMemory()
        self.binders: dict[int, Callable[[Any], Launch | Rejected]] = {}
        self.sharing: dict[int, int] = {}
        self.definitions = ReadOnce()
        self.next = 0
        self.source: Path | None = None
        self.scratch = scratch
        self.limits = limits
        self.guards = guards
        self.sealed = scratch is None
        self.library = True
        self.interpreted = False
        self.watch: DeviceWatch | None = None
        self.watched: tuple[Path, Config] | None = None
        self.mapped: Arena | None = None
        self.threads = len(sys._current_frames())
        self.confined = 0
        self.peak_reset = sampling.peak_reset() if scratch is not None else None
        self.before = snapshot() if guards.snapshot and scratch is not None else Snapshot()

    def handle(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> dict[str, Any]:
        """The answer to one message, both as they are sent: that of the method with the name that the question has.
        Whatever a kernel raises becomes Failed.
        """
        try:
            question = question_of(message)
            answer: Answer = getattr(self, question.do)(question, fds)
            changed = replaced(self.before)
            if changed:
                answer = Failed(
                    reason=f"replaced {', '.join(changed[:5])}; a kernel must leave clocks and other people's "
                    "functions alone"
                )
            return answered(answer)
        except EnvironmentLacks as error:
            return answered(Lacks(reason=str(error), later=isinstance(error, NotNow)))
        # the boundary to foreign code: every exception becomes a verdict in the parent
        except Exception as error:  # noqa: BLE001
            if (known := no_fault_of_its_arithmetic(error)) is not None:
                return answered(known)
            trace = "".join(traceback.format_exception(error)[-4:])
            return answered(Failed(reason=raised.in_words(error, self.source), trace=trace[-4000:]))

    def bind(self, question: Bind, fds: Sequence[int]) -> LaunchBound | Refused:
        """Map the arena, bind the implementation to its tensors, compile what needs compiling."""
        arena, self.mapped = Arena.attach(question.arena, fds[0], self.mapped), None
        sandbox.require(question.device)
        if question.device != "cpu" and arena.size >= WORTH_PINNING:
            arena.pin()
        # the parent names every home, the package's and the plugins' too: another revision of them may be what is asked
        # for
        operator, implementation = self.definitions.of(question.homes, question.operator, question.implementation)
        self.source, config = implementation.source, question.config

        def bind_to(memory: Any) -> Launch | Rejected:
            tensors = placement.tensors(memory)
            call = formed(operator, {**question.axes, **question.scalars})
            inputs = {spec.name: tensors[spec.name] for spec in call.inputs}
            outputs = {spec.name: tensors[spec.overwrites or spec.name] for spec in call.outputs}
            return bind(
                operator,
                implementation,
                inputs,
                outputs,
                question.scalars,
                question.axes,
                question.dtype,
                config,
                self.guards,
            )

        self.seal(implementation, config, question)
        self.results.as_it_is = implementation.backend == "compile"
        whole = arena.bytes()
        if question.device != "cpu":
            whole = self.uploaded(whole, question.device)
        # a library's own routines, and this process where nothing confines it, are not put before pages that end them
        placement = Placement(
            arena,
            whole,
            fenced=self.scratch is not None and not self.library,
            # Inductor overwrites no tensor whose memory another of another dtype has a part of
            apart=implementation.backend == "compile" and bool(operator.overwritten),
        )
        launch = bind_to(whole)
        if isinstance(launch, Rejected):
            placement.end()
            arena.close()
            return Refused(reason=launch.reason)
        self.binders[self.next + 1] = bind_to
        number = self.launched(launch, arena, whole, placement, bind_to)
        return LaunchBound(launch=number, notes=tuple(launch.notes), confined=self.confined)

    def launched(
        self,
        launch: Launch,
        arena: Arena,
        whole: Any,
        placement: Placement,
        bind_to: Callable[[Any], Launch | Rejected],
    ) -> int:
        """The number by which a launch is asked for from now on."""

        def run_on(memory: Any) -> Callable[[], object]:
            again = bind_to(memory)
            assert not isinstance(again, Rejected)  # it took the same call on other memory
            there = again.on(launch.terms)
            assert there is not None  # it was on these terms before
            there.ready()
            return there.run

        self.next += 1
        self.launches[self.next] = (launch, arena, whole)
        self.placements[self.next] = placement
        self.rotations[self.next] = sampling.Rotation(launch.run, whole, run_on, self.guards, placement.bring)
        return self.next

    def terms(self, question: Terms, fds: Sequence[int]) -> OnTerms | Unfit:
        """A bound launch on the terms that the parent asks for: the same kernel, tensors and memory, under a number of
        its own, or under the same
        one where those are its terms. Unfit where there is no such way."""
        number = question.launch
        launch, arena, whole = self.launches[number]
        other = launch.on(question.terms)
        if other is None:
            return Unfit(reason=f"{launch.implementation} cannot be called so")
        if other is not launch:
            self.sharing[self.next + 1] = number
            number = self.launched(other, arena, whole, self.placements[number], self.binders[number])
        return OnTerms(launch=number)

    @spans.spanned(lambda self, whole, device: ("context and upload", "", ""))
    def uploaded(self, whole: Any, device: str) -> Any:
        """The arena's bytes in a device's memory. Raises NotNow where there is no room before any kernel has run here:
        others have taken it.
        """
        try:
            return whole.to(device)
        except RuntimeError as error:
            if self.next or "out of memory" not in str(error).lower():
                raise
            raise NotNow(
                f"the device has no room for {whole.numel()} bytes beside what others hold; run it again when they "
                f"are done ({str(error).splitlines()[0]})"
            ) from error

    @spans.spanned(lambda self, implementation, config, question: ("compile and seal", "", ""))
    def seal(self, implementation: Implementation, config: Config | None, question: Bind) -> None:
        """Once, before any of the kernel's own code runs: compile what can be compiled, then give up the right to
        write.
        """
        self.library = implementation.backend in LIBRARY
        self.interpreted = implementation.backend == "triton"
        chosen, device = implementation.default if config is None else config, question.device
        if self.sealed:
            self._look_at(implementation, chosen, device)
            return
        assert self.scratch is not None and self.limits is not None
        self.sealed = True
        build = getattr(backend(implementation.backend), "build", None)
        if build is not None:
            compiled(lambda: build(implementation, chosen, device))
        self._look_at(implementation, chosen, device)
        build_call = getattr(backend(implementation.backend), "build_call", None)
        if build_call is not None:
            # without it calls take a longer way on the host, as they do for a user who has no compiler
            with contextlib.suppress(OSError, OpforgeError):
                build_call(device)
        writable = [self.scratch]
        emulated = implementation.backend == "triton" and device == "cpu"
        if implementation.backend not in COMPILED_FIRST and not emulated:
            # compilers that run at the first call keep what they make in a folder that no other code shares
            folder = cache.jit_folder(question.homes, implementation.backend, source_sha256(implementation.source))
            folder.mkdir(parents=True, exist_ok=True)
            os.environ.update(cache.jit_environment(folder, question.dtype))
            writable.append(folder)
        elif os.environ.get(INDUCTOR_FOLDER):
            # the user's own: not this worker's to write to, and PyTorch makes it where it is not there
            os.environ[INDUCTOR_FOLDER] = str(self.scratch / "torchinductor")
        sandbox.limit(self.limits, host_memory=device == "cpu")
        covered = files_of(implementation.source)
        self.confined = confinement.raise_around(writable, self.scratch, self.guards, covered)

    def _look_at(self, implementation: Implementation, config: Config, device: str) -> None:
        """From now on the device's kernels must be this config's: each has a library of its own, and a first call."""
        if self.scratch is None or not self.guards.device_names or device not in device_clocks.TRACED:
            return
        if self.watched != (implementation.source, config):
            self.watched = implementation.source, config
            self.watch = DeviceWatch(implementation, config, device)

    def context(self, question: GetContext, fds: Sequence[int]) -> Done:
        """Get a device's context, and begin its first trace: none of the kernel's code runs yet."""
        import torch

        sandbox.require(question.device)
        torch.empty(1, device=question.device)
        device_clocks.begin_trace(question.device)
        return Done()

    def run(self, question: Run, fds: Sequence[int]) -> Launched:
        """Take the arena's bytes as they are now, run once, put the outputs back. The answer counts the operations of
        PyTorch that a kernel of another backend called."""
        number = question.launch
        launch, arena, whole = self.launches[number]
        if question.beside >= 0:
            return self._together(number, question.beside)
        if question.upload and whole.device.type != "cpu":
            whole.copy_(arena.bytes())
        self.placements[number].bring()
        (launch.ready if question.written == OTHER else launch.same)()
        operations: dict[str, int] = {}
        foreign: list[str] = []
        if self.library or not self.guards.trace:
            launch.run()
        elif self.guards.ledger and self.interpreted and whole.device.type == "cpu":
            book = Ledger([] if launch.made else list(launch.read().values()), self.threads)
            operations = traced(launch.run, book, results=launch.read)
            foreign = book.over(list(launch.read().values()))
        elif self.watch is not None and self.watch.looks():
            operations, foreign = self.watch.run(launch.run, launch.read)
        else:
            operations = traced(launch.run, results=launch.read)
        self._collect(number)
        if self.guards.new_memory:
            hold(self.held.setdefault(number, []), launch, self.placements[number].storages())
        return Launched(operations=operations, foreign=tuple(foreign), notes=interpreted_notes())

    def _together(self, *numbers: int) -> Launched:
        for number in numbers:
            self.placements[number].bring()
            self.launches[number][0].ready()
        one, other = (self.launches[number][0].run for number in numbers)
        together(one, other)
        for number in numbers:
            self._collect(number)
        return Launched()

    def collect(self, question: Collect, fds: Sequence[int]) -> Done:
        """Put what the last run left into the arena."""
        self._collect(question.launch)
        return Done()

    def _collect(self, number: int) -> None:
        launch, arena, whole = self.launches[number]
        outputs = launch.read()
        synchronize(whole)
        places = {slot.becomes or slot.name: whole.data_ptr() + slot.offset for slot in arena.slots}
        made = {name: tensor for name, tensor in outputs.items() if tensor.data_ptr() != places[name]}
        if whole.device.type != "cpu":
            # a kernel that writes where it is told to has done so; where all results were made elsewhere none is there
            for part in arena.around_outputs() if len(made) == len(outputs) else (slice(0, arena.size),):
                arena.bytes()[part].copy_(whole[part])
        self.placements[number].take(arena.tensors("input"))
        for name, tensor in made.items():
            arena.tensor(name).copy_(tensor)

    def _collected(self, number: int) -> int | None:
        """Collect, and the checksum of the outputs at this moment: whatever works on is seen by it. None from a device,
        whose memory is copied when all is done: 45 ms for 134 MB, and nobody asks.
        """
        self._collect(number)
        _, arena, whole = self.launches[number]
        return arena.checksum() if whole.device.type == "cpu" else None

    def sample(self, question: Sample, fds: Sequence[int]) -> Samples | Unfit | Unlike:
        """Samples in seconds per call, by the clock the parent chose."""
        launch, arena, whole = self.launches[question.launch]
        # what was held is free before its place is looked at
        freed = bool(self.held.pop(question.launch, None))
        filled = 0
        if whole.device.type == "cpu":
            filled = self.results.settle(question.launch, launch, arena, anew=freed)
        elif question.upload:
            whole.copy_(arena.bytes())
        placement = self.placements[question.launch]
        placement.bring()
        try:
            return sampling.sample(
                self.rotations[question.launch],
                question,
                fds,
                launch.ready if launch.ready is launch.same else placement.before(launch.ready),
                launch.same,
                lambda: self._collected(question.launch),
                filled,
            )
        finally:
            for descriptor in fds:
                os.close(descriptor)

    def launch_cost(self, question: LaunchCost, fds: Sequence[int]) -> HostCost:
        """Seconds the host spends to start one call of an accelerator's kernel."""
        launch, _, _ = self.launches[question.launch]
        return HostCost(samples=tuple(sampling.launch_cost(launch.run, question.batch, question.count)))

    def memory(self, question: Memory, fds: Sequence[int]) -> Extra:
        """Bytes that one call takes beyond the arena, at its peak; None where it cannot be told."""
        launch, _, whole = self.launches[question.launch]
        extra = sampling.extra_bytes(launch.run, whole, self.peak_reset)
        return Extra() if extra is None else Extra(bytes=max(0, extra - sum(launch.made)))

    def work(self, question: DeviceWork, fds: Sequence[int]) -> Work | Unfit:
        """What the device does for a number of calls in a row."""
        launch, _, _ = self.launches[question.launch]
        self.held.pop(question.launch, None)
        return sampling.work(launch.run, question.count)

    def replay(self, question: Replay, fds: Sequence[int]) -> Done | Unfit:
        """Capture the call in a CUDA graph, take the arena's bytes as they are, replay it, put the outputs back."""
        launch, arena, whole = self.launches[question.launch]
        self.held.pop(question.launch, None)
        try:
            again = device_clocks.captured(launch.run, 1)
        except device_clocks.ClockUnfit as error:
            return Unfit(reason=str(error))
        whole.copy_(arena.bytes())
        # a graph reads where it was captured: in allocations of their own, where the kernel has them
        self.placements[question.launch].before(launch.ready)()
        again()
        self._collect(question.launch)
        return Done()

    def overhead(self, question: Overhead, fds: Sequence[int]) -> Clocks:
        """What the sampling loop costs, the clocks' resolution, and how many threads CPU kernels use here."""
        import torch

        return sampling.about_clocks(question.batch, question.count, torch.device(question.device))

    def release(self, question: Release, fds: Sequence[int]) -> Done:
        """Forget a launch and give its memory back."""
        number = question.launch
        _, arena, whole = self.launches.pop(number)
        device = whole.device
        self.held.pop(number, None)
        self.results.give_back()
        self.rotations.pop(number)
        self.binders.pop(number, None)
        placement = self.placements.pop(number)
        if self.sharing.pop(number, None) is None:
            placement.end()
            if question.mapped and arena.pinned and self.mapped is None:
                self.mapped = arena
            else:
                arena.close()
        # a worker that is kept between workloads must not keep their memory
        del whole
        if arena.size >= WORTH_PINNING:
            sampling.give_back(device)
        return Done()

    def spare(self, question: Spare, fds: Sequence[int]) -> Done:
        """Give back what a launch keeps for the next sample."""
        self.rotations[question.launch].spare()
        return Done()
