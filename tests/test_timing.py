"""Timing: what the clocks are asked, when sampling ends, what statistics say, which clock is chosen. Clock and machine
are simulated.
"""

import ctypes
import dataclasses
import mmap
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from opforge.core.definition.operator import Case
from opforge.core.evidence.statistics import drift, modes, outliers, quantile
from opforge.core.evidence.timing import Moment, Round, Timing, Untimed
from opforge.core.evidence.verdict import Checked, Pass
from opforge.runner.walls import processes
from opforge.runner.wire.messages import OTHER, SAME, Extra, HostCost, LaunchCost, Memory, Samples, Seen, Unfit
from opforge.runner.worker import sample_requests
from opforge.runner.worker.clocks import clock_step, host_samples, launch_samples, spread_out
from opforge.runner.worker.device_clocks import (
    WAITS,
    event_samples,
    graph_samples,
    rotation_size,
    union,
)
from opforge.timing import Candidate, Plan, StateProbe, measure
from opforge.timing.conditions import Nvml, throttle_words, words
from opforge.timing.measure import ROUND, TURNS
from opforge.timing.timers import TimerTrial, choose, clocks_of
from opforge.trial import audit

PROOF = Pass(
    checked=(
        Checked(case=Case(name="all", axes={}, why="stands for the operator's cases"), dtype="float32", metrics=()),
    ),
    not_taken=(),
    isolation="simulated",
)


class Machine:
    """A simulated worker and the parent's clock: a call takes `call_s()`, a request 50 us on top."""

    def __init__(self, call_s, lies=1.0, clocks=("host",)):
        self.now = 0.0
        self.call_s = call_s
        self.lies = lies
        self.clocks = clocks
        self.calls = 0
        self.asked = []

    def ask(self, question):
        self.asked.append(question)
        self.now += 50e-6
        if isinstance(question, Memory):
            return Extra(bytes=4096)
        if isinstance(question, LaunchCost):
            return HostCost(samples=(3e-6,) * question.count)
        if question.timer not in self.clocks:
            return Unfit(reason=f"no {question.timer} here")
        samples = []
        for _ in range(question.count):
            spent = 0.0
            for _ in range(question.batch):
                spent += self.call_s(self.calls)
                self.calls += 1
            self.now += spent
            samples.append(spent / question.batch * self.lies)
        return Samples(samples=tuple(samples), batch=question.batch)

    def clock(self):
        return self.now


DEFAULT = Plan()


def run(machine, plan=DEFAULT, device="cpu", **options):
    candidate = Candidate(name="k", proof=PROOF, ask=machine.ask, launch=1)
    return candidate, measure(
        [candidate], plan, overhead_s=0.0, clock=machine.clock, order=random.Random(1), device=device, **options
    )["k"]


def timing(samples, **fields):
    return Timing(
        **{
            "samples_s": tuple(samples),
            "batch": 1,
            "timer": "host",
            "cache": "warm",
            "overhead_s": 0.0,
            "conditions": (),
            **fields,
        }
    )


def test_short_kernels_are_batched_until_the_clock_is_fine_enough():
    """A 10 us kernel between two readings of a clock would be all reading."""
    _, found = run(Machine(lambda call: 10e-6))
    assert found.batch == 100
    assert found.median_s == pytest.approx(10e-6)


@pytest.mark.parametrize(("call_s", "batches"), [(0.1e-3, range(5, 11)), (3e-3, range(1, 2))])
def test_a_sample_is_no_longer_than_planned_and_no_two_turns_need_be_alike(call_s, batches):
    """Of longer samples more are interrupted where somebody else has the processors at times, and the median of all is
    one of the slower among the rest.
    """
    machine = Machine(lambda call: call_s)
    run(machine, dataclasses.replace(DEFAULT, samples=200))
    drawn = [(question.batch, question.count) for question in machine.asked if getattr(question, "lead", 0)]
    assert {batch for batch, _ in drawn} <= set(batches)
    assert len({batch * count for batch, count in drawn}) > 1


def test_memory_beside_time():
    """A kernel that is fast because it takes a gigabyte is another kernel."""
    _, found = run(Machine(lambda call: 1e-3))
    assert found.extra_bytes == 4096


def test_memory_of_a_call_is_seen_on_this_machine():
    """32 MiB that one call touches and gives back."""
    torch = pytest.importorskip("torch")
    from opforge.runner.worker.sampling import extra_bytes

    def call():
        # mapped anew each time: what malloc has kept from calls before is resident already and not seen
        with mmap.mmap(-1, 32 << 20) as memory:
            for page in range(0, 32 << 20, 4096):
                memory[page] = 1

    found = extra_bytes(call, torch.empty(0))
    if found is None:
        pytest.skip("this system does not tell the peak of the resident set")
    assert 24 << 20 <= found <= 64 << 20


@pytest.mark.slow
def test_memory_of_a_call_is_seen_in_a_worker_that_may_not_write(guest):
    """The peak is read from a confined process too: 64 copies are 64 copies."""
    pytest.importorskip("torch")
    from opforge.registry import load
    from opforge.runner import Isolated
    from opforge.verify import CaseCache, run_once

    registry = load(
        [
            guest(
                eager="def run(x, bias):\n    return x + bias\n",
                greedy="def run(x, bias):\n    copies = [(x + bias).repeat(8, 1) for _ in range(64)]\n    return "
                "copies[0][: x.shape[0]].clone()\n",
            )
        ]
    )
    operator = registry.operator("guest_add")
    extra = {}
    with Isolated() as host:
        cases = CaseCache(registry=registry, operator=operator, host=host, device="cpu")
        for name in ("torch_eager", "torch_greedy"):
            worker = host.worker({})
            prepared = cases.prepare(Case(name="tiny", axes={"rows": 64, "cols": 256}, why="a test"), "float32")
            ran = run_once(cases, worker, registry.implementation("guest_add", name), prepared, None)
            assert isinstance(ran.outcome, Checked)
            extra[name] = worker.request(Memory(launch=ran.launch)).bytes
            worker.close()
        cases.close()
    if extra["torch_eager"] is None:
        pytest.skip("this system does not tell the peak of the resident set")
    assert extra["torch_eager"] < 4 << 20
    # 64 copies of eight times 64 x 256 floats are 32 MiB; what malloc keeps from the call before is not seen again
    assert 8 << 20 <= extra["torch_greedy"] <= 64 << 20


def test_sampling_ends_when_the_median_is_known():
    """A steady kernel needs the turns that the parent's clock wants and no more, however large the budget."""
    candidate, found = run(Machine(lambda call: 1e-3), Plan(samples=30, budget_s=100.0))
    assert candidate.turns == TURNS
    # how many samples of one call a turn has is drawn
    assert TURNS * (ROUND + 1) // 2 <= len(found.samples_s) <= TURNS * (ROUND + ROUND // 2)


def test_a_noisy_kernel_is_sampled_until_its_budget_is_spent():
    """More samples are the answer to noise, the budget is the end of it."""
    noise = random.Random(2)
    candidate, found = run(
        Machine(lambda call: 1e-3 * noise.uniform(1, 2)), Plan(samples=30, budget_s=0.5, precision=0.001)
    )
    assert len(found.samples_s) > 100
    # with the calls that make it ready again, and the way there and back
    assert candidate.spent_s == pytest.approx(0.5, rel=0.1)


def test_every_sample_is_kept_in_order():
    """A verdict must be computable again from the record; an outlier that was dropped is gone."""
    machine = Machine(lambda call: 50e-3 if 160 <= call < 164 else 1e-3)
    _, found = run(machine, Plan(samples=30))
    assert max(found.samples_s) == pytest.approx(50e-3)
    assert found.samples_s.index(max(found.samples_s)) in found.outliers
    assert found.quantile_s(1.0) == max(found.samples_s)


def test_warm_up_is_not_sampled():
    """Ten slow first calls (compilation, page faults) belong to nobody's median."""
    _, found = run(Machine(lambda call: 20e-3 / (1 + call) if call < 10 else 1e-3))
    assert max(found.samples_s) < 3e-3


@pytest.mark.parametrize("ramp", [0, 12, 60])
def test_a_turn_begins_with_as_many_calls_as_the_caches_take_to_fill(ramp):
    """Results of 26 MB take sixty calls to settle in a third-level cache: after 30 ms half of it was still ahead."""

    class Emptied(Machine):
        def ask(self, question):
            self.since = 0
            for _ in range(getattr(question, "lead", 0)):
                self.now += self.call_s(self.calls)
            return super().ask(question)

        def slower(self, call):
            self.since += 1
            return 1e-3 * (1 + max(0.0, 1.2 * (1 - self.since / ramp)) if ramp else 1.0)

    machine = Emptied(None)
    machine.call_s = machine.slower
    candidate, found = run(machine)
    assert found.median_s == pytest.approx(1e-3, rel=0.03)
    assert max(29, ramp) <= candidate.lead <= max(30, 3 * ramp)
    assert candidate.turns >= 12  # with fewer the parent's clock says nothing


def test_a_worker_that_claims_more_than_was_spent_is_not_believed():
    """Its samples cannot be longer than this process waited."""
    _, found = run(Machine(lambda call: 1e-3, lies=3.0))
    assert "of this process's clock" in found.reason


def test_a_worker_that_claims_less_than_was_spent_is_not_believed():
    """A clock that runs slow, by a sixth already: requests of different length show what a call takes, and the parent
    times them.
    """

    class Watched(Machine):
        def ask(self, question):
            started = self.now
            answer = super().ask(question)
            self.now += random.Random(self.calls).uniform(0, 30e-6)
            if not isinstance(answer, Samples):
                return answer
            return dataclasses.replace(
                answer, seen=Seen(wall_s=self.now - started, own_s=0.0, waited_s=0.0, voluntary=0, involuntary=0)
            )

    _, honest = run(Watched(lambda call: 0.2e-3))
    assert honest.parent_s == pytest.approx(0.2e-3, rel=0.1)
    _, slow = run(Watched(lambda call: 0.2e-3, lies=5 / 6))
    assert "by this process's clock" in slow.reason


def test_a_turn_in_which_others_had_the_processors_is_marked():
    """A time that was taken while its threads waited for a processor is no time of a kernel's."""
    quiet = Round(samples=5, wall_s=0.02, own_s=0.04, waited_s=0.003, voluntary=5, involuntary=1)
    busy = Round(samples=5, wall_s=0.02, own_s=0.03, waited_s=0.012, voluntary=5, involuntary=9)
    assert not quiet.disturbed and busy.disturbed
    assert timing([1e-3] * 30, rounds=(quiet, quiet, busy)).unsteady == ()
    assert "its processors were wanted by something else" in timing([1e-3] * 30, rounds=(quiet, busy, busy)).unsteady[0]


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="the system does not say what threads had of the processors"
)
def test_a_stopped_process_has_stopped_with_the_threads_that_spin():
    """The signal is taken by the main thread, which sleeps: a thread that spins would go on in the next candidate's
    turn.
    """
    spins = (
        "import threading, time\nthreading.Thread(target=lambda: [None for _ in iter(int, 1)], "
        "daemon=True).start()\nprint(flush=True)\ntime.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", spins], stdout=subprocess.PIPE, start_new_session=True)
    try:
        child.stdout.readline()
        assert processes.stop(child.pid)
        before = processes.usage(child.pid).own_s
        assert len(processes.usage(child.pid).by_thread) == 2 and before > 0
        time.sleep(0.02)
        assert processes.usage(child.pid).own_s == before
    finally:
        child.kill()
        child.communicate()


def test_a_native_sampler_and_the_one_in_python_take_the_same_samples():
    """What is asked comes through a descriptor; calls are counted, and what one raises comes out."""
    calls, ready, same = [], [], []
    for take in (sample_requests.sampler(), sample_requests.in_python):
        calls.clear()
        ready.clear()
        same.clear()
        samples, led, batch, collected = take(
            lambda: calls.append(1),
            lambda: ready.append(1),
            lambda: same.append(1),
            sample_requests.SampleRequest(written=OTHER, lead=2, batch=3, count=4, collected=True).sent(),
        )
        assert collected and (len(calls), len(ready), len(same), len(samples), batch) == (2 + 3 * 4, 1, 0, 4, 3)
        take(
            *map(lambda kept: lambda: kept.append(1), (calls, ready, same)),
            sample_requests.SampleRequest(written=SAME).sent(),
        )
        assert (len(ready), len(same)) == (1, 1)
        assert led > 0 and min(samples) > 0
        with pytest.raises(ZeroDivisionError):
            take(lambda: 1 / 0, lambda: None, lambda: None, sample_requests.SampleRequest().sent())


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="the stack is read through /proc")
def test_no_number_of_a_request_stands_on_the_stack_while_calls_run():
    """A kernel in C++ walked up the stack to the sampler's request, computed in judged calls alone, and was believed
    with 1 us for 1.8 ms.
    """
    if sample_requests.sampler() is sample_requests.in_python:
        pytest.skip("no compiler: the sampler in Python is seen anyway")
    lines = Path("/proc/self/maps").read_text().splitlines()
    first, last = (int(end, 16) for end in next(line for line in lines if "[stack]" in line).split()[0].split("-"))
    found = []

    def run():
        with Path("/proc/self/mem").open("rb", buffering=0) as memory:
            memory.seek(first)
            stack = memory.read(last - first)
        found.append(stack.count(struct.pack("=2q", 23, 29)))

    # numbers that don't stand beside each other in somebody else's frame: 3 and 7 did
    request = sample_requests.SampleRequest(written=SAME, lead=1, batch=23, count=29)
    taken = sample_requests.sampler()(run, lambda: None, lambda: None, request.sent())
    assert len(taken.samples) == 29 and found == [0] * (1 + 23 * 29)


@pytest.mark.parametrize("sampler", [sample_requests.sampler, lambda: sample_requests.in_python])
def test_what_a_forward_pass_keeps_is_made_again_where_inputs_are_written(sampler):
    """PyTorch's own gradients were refused: they answered for the content of before, whose forward pass they had."""
    memory, seen = ctypes.create_string_buffer(2), []

    def made():
        seen.append(memory.raw[:2])

    places = ((0, b"\1", b"\2"), (1, b"\3", b"\4"))
    request = sample_requests.SampleRequest(count=3, places=places, contents=bytes([0, 1, 0]))
    once_each = [b"\1\3", b"\2\4", b"\1\3"]
    sampler()(lambda: None, made, made, request.sent(), ctypes.addressof(memory))
    assert seen == once_each
    sampler()(lambda: None, made, lambda: None, request.sent(), ctypes.addressof(memory))
    assert seen == once_each


def test_a_worker_that_answers_nonsense_is_not_believed():
    """Zero seconds, or fewer samples than asked for, are no times."""
    candidate = Candidate(
        name="k", proof=PROOF, ask=lambda question: Samples(samples=(0.0,) * question.count, batch=1), launch=1
    )
    assert "not what was asked for" in measure([candidate], Plan(), overhead_s=0.0)["k"].reason


def test_candidates_take_turns_in_random_order():
    """Drift must fall on all alike."""
    machine, turns = Machine(lambda call: 1e-3), []

    def asker(name):
        def ask(question):
            if getattr(question, "lead", 0):
                turns.append(name)
            return machine.ask(question)

        return ask

    both = [Candidate(name=name, proof=PROOF, ask=asker(name), launch=1) for name in "ab"]
    measure(both, Plan(samples=60), overhead_s=0.0, clock=machine.clock, order=random.Random(3))
    pairs = list(zip(turns[-24::2], turns[-23::2], strict=True))
    assert {tuple(sorted(pair)) for pair in pairs} == {("a", "b")}
    assert {("a", "b"), ("b", "a")} == set(pairs)


def test_the_clock_that_was_chosen_is_recorded_with_what_the_others_saw():
    """A reader must know what was measured."""
    machine = Machine(lambda call: 10e-6, clocks=("cuda_graph", "cuda_event", "cupti"))
    _, found = run(machine, device="cuda")
    assert found.timer == "cuda_graph"
    # two that agree need no third, which would take seconds to begin
    assert set(found.seen_by) == {"cuda_graph", "cuda_event"}
    assert found.launch_s == 3e-6
    assert any("no longer than the events" in words for words in found.conditions)


def test_without_cupti_and_graphs_events_are_used_and_it_is_said():
    """A fallback that is not said is a lie about launch cost."""
    _, found = run(Machine(lambda call: 10e-6, clocks=("cuda_event",)), device="cuda")
    assert found.timer == "cuda_event"
    assert any("launch cost included" in words for words in found.conditions)


@pytest.mark.parametrize(
    ("trials", "timer"),
    [
        ({"cuda_graph": 10e-6, "cuda_event": 14e-6}, "cuda_graph"),
        ({"cuda_graph": 50e-6, "cuda_event": 14e-6, "cupti": 12e-6}, "cuda_event"),
        ({"cuda_graph": 50e-6, "cuda_event": 14e-6, "cupti": 50e-6}, "cuda_graph"),
        ({"cuda_graph": 50e-6, "cuda_event": 14e-6}, "cuda_graph"),
        ({"cuda_event": 60e-6, "cupti": 9e-6}, "cupti"),
        ({"cuda_event": 60e-6}, "cuda_event"),
    ],
    ids=[
        "the graph is not longer",
        "CUPTI is with the events",
        "the events miss work",
        "no third clock: the longer",
        "no graph",
        "events alone",
    ],
)
def test_trials_choose_the_clock(trials, timer):
    """The graph, unless ordinary calls are faster: then a third clock decides."""
    seen = {
        name: TimerTrial(median_s=trials.get(name), reason="" if name in trials else "absent")
        for name in clocks_of("cuda")
    }
    assert choose(seen).timer == timer


def test_no_clock_at_all_is_a_reason():
    """Not a time of some kind."""
    assert choose({"cuda_event": TimerTrial(median_s=None, reason="it crashed")}) == Untimed(
        reason="cuda_event: it crashed"
    )


def test_two_speeds_are_found_and_one_is_not_split():
    """Medians of bimodal kernels jump between runs; a normal spread must not be called two speeds."""
    generator = random.Random(4)
    both = [generator.gauss(1.0, 0.01) if generator.random() < 0.7 else generator.gauss(1.1, 0.01) for _ in range(60)]
    found = modes(both)
    assert [round(mode.median_s, 1) for mode in found] == [1.0, 1.1]
    assert "two speeds" in timing(both).unsteady[0]
    assert sum(len(modes([generator.gauss(1.0, 0.03) for _ in range(60)])) == 2 for _ in range(100)) <= 1


def test_drift_is_told_from_noise():
    """A device that heats up gets slower through the run; the median of all hides it."""
    assert drift([1.0 + 0.01 * step for step in range(40)]) > 0.1
    assert "slower in the second half" in timing([1.0 + 0.01 * step for step in range(40)]).unsteady[0]
    assert drift([1.0, 1.02] * 20) == 0.0


def test_a_steady_timing_has_nothing_to_confess():
    """Otherwise readers learn to skip the words."""
    generator = random.Random(5)
    assert timing([generator.gauss(1e-3, 1e-5) for _ in range(50)]).unsteady == ()


def test_a_coarse_clock_is_confessed():
    """A step of 0.5 us in a sample of 10 us is 5 %."""
    assert "coarse" in timing([10e-6] * 30, resolution_s=0.5e-6).unsteady[0]
    assert timing([10e-6] * 30, batch=100, resolution_s=0.5e-6).unsteady == ()


def test_statistics_of_known_samples():
    """By hand."""
    found = timing([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.median_s, found.iqr_s, found.spread) == (3.0, 2.0, pytest.approx(2 / 3))
    assert found.rsd == pytest.approx(2**0.5 / 3)
    assert found.p50_p90_p99_s == (3.0, pytest.approx(4.6), pytest.approx(4.96))
    assert quantile([7.0], 0.9) == 7.0
    assert outliers([1.0, 1.0, 1.0, 1.0]) == ()


def test_the_interval_of_the_median_holds_it_as_often_as_it_says():
    """95 % of intervals of 30 exponential samples must hold the true median."""
    generator = random.Random(6)
    held = 0
    for _ in range(1000):
        low, high = timing([generator.expovariate(0.6931471805599453) for _ in range(30)]).interval_s
        held += low <= 1.0 <= high
    assert held >= 940


def test_launch_cost_waits_outside_the_readings():
    """What the device does is not what the host spends."""
    now = [0.0]

    def launch():
        now[0] += 2.0

    def wait():
        now[0] += 100.0

    assert launch_samples(launch, 3, 2, wait, clock=lambda: now[0]) == [2.0, 2.0]


def test_host_samples_divide_by_the_batch():
    """Two readings surround the batch, nothing else."""
    ticks = iter([0.0, 6.0])
    assert host_samples(lambda: None, 3, 1, clock=ticks.__next__) == [2.0]


def test_clock_step_is_the_smallest_seen():
    """Readings that do not move are waited through."""
    ticks = iter([0.0, 0.0, 3.0, 5.0, 7.0])
    assert clock_step(ticks.__next__, tries=2) == 2.0


def test_rotation_goes_through_every_buffer():
    """A buffer met again too early is warm."""
    seen = []
    call, batch = spread_out([lambda name=name: seen.append(name) for name in "abc"], 4)
    for _ in range(batch):
        call()
    assert "".join(seen) == "abcabc"
    assert rotation_size(1 << 20, 50 << 20) == 1
    assert rotation_size(10 << 20, 50 << 20) * (10 << 20) > 2 * (50 << 20)


def test_overlapping_kernels_are_counted_once():
    """Two streams busy at once are busy once."""
    assert union([(0, 10), (2, 3), (20, 5)]) == 15


class FakeNvml:
    """pynvml of a device that is hot and held back, and has no energy counter."""

    NVML_CLOCK_SM = NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def __init__(self):
        self.clock = 1980

    def nvmlDeviceGetClockInfo(self, handle, kind):
        self.clock -= 100
        return self.clock

    def nvmlDeviceGetTemperature(self, handle, kind):
        return 88

    def nvmlDeviceGetPowerUsage(self, handle):
        return 700_000

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        raise self.NVMLError

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return 0x24


def test_conditions_of_a_device_are_read_and_said(tmp_path):
    """Throttling explains a slow record, so it must be in it."""
    probe = StateProbe("cpu", root=tmp_path, nvml=Nvml(FakeNvml(), object()), clock=iter(range(10)).__next__)
    moments = [probe.read(), probe.read()]
    assert (moments[0].sm_mhz, moments[0].temperature_c, moments[0].power_w, moments[0].energy_j) == (
        1880.0,
        88.0,
        700.0,
        None,
    )
    said = " | ".join(words(moments))
    assert "SM clock 1780 to 1880 MHz" in said
    assert "the SM clock moved" in said
    assert "held back in 2 of 2 rounds (power cap and thermal slowdown (software))" in said
    assert throttle_words(0) == ()


def test_time_taken_by_a_hypervisor_is_noticed(tmp_path):
    """A neighbour on the same host makes intervals wide; the reader should know why."""
    (tmp_path / "proc").mkdir()
    stat = tmp_path / "proc/stat"
    stat.write_text("cpu  100 0 0 100 0 0 0 0 0 0\n")
    (tmp_path / "proc/loadavg").write_text("1.50 1.0 1.0 1/100 1\n")
    probe = StateProbe("cpu", root=tmp_path, clock=iter(range(10)).__next__)
    stat.write_text("cpu  150 0 0 130 0 0 0 20 0 0\n")
    moment = probe.read()
    assert (moment.load, moment.stolen) == (1.5, 0.2)
    assert "gave 20% of processor time to others" in " ".join(words([moment]))
    assert words([Moment(at_s=0.0)]) == ()


def test_conditions_are_kept_with_the_timing():
    """One look before, one after, and some between."""
    machine = Machine(lambda call: 1e-3)
    looks = iter(range(1000))
    _, found = run(machine, probe=lambda: Moment(at_s=float(next(looks)), load=0.5))
    assert [moment.at_s for moment in found.moments][:2] == [0.0, 1.0]
    assert "load 0.5 before, 0.5 after" in found.conditions


class LateHost:
    """A simulated device and its host, in cycles: a flush keeps the device busy for `flush`, the host takes `late` of
    them, one per sample, until it has recorded the end.
    """

    def __init__(self, monkeypatch, late, flush=100_000, kernel=10_000):
        torch = pytest.importorskip("torch")
        self.late, self.flush_cycles, self.kernel = iter(late), flush, kernel
        self.now = self.device = 0
        self.waits = []
        monkeypatch.setattr(torch, "Event", lambda enable_timing: LateHost.Event(self))
        monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "_sleep", self.sleep)

    class Event:
        def __init__(self, machine):
            self.machine, self.at = machine, None

        def record(self):
            self.at = self.machine.device = max(self.machine.device, self.machine.now)

        def query(self):
            return self.at <= self.machine.now

        def elapsed_time(self, other):
            return (other.at - self.at) * 1e3

    def sleep(self, cycles):
        self.waits.append(cycles)
        self.device += cycles

    def flush(self):
        self.now = self.device = max(self.now, self.device)
        self.device += self.flush_cycles

    def run(self):
        self.now += next(self.late)
        self.device = max(self.device, self.now) + self.kernel


def test_what_a_host_was_late_is_in_no_sample_of_a_graph(monkeypatch):
    """The first sample after a pause: launches took 27 us more than the flush, and the device waited for them."""
    machine = LateHost(monkeypatch, late=[127_000, 30_000, 30_000, 30_000])
    assert graph_samples(machine.run, 1, 3, machine.flush) == [10_000, 10_000, 10_000]
    assert machine.waits == [WAITS[1]]
    machine = LateHost(monkeypatch, late=[127_000, 30_000, 30_000])
    assert event_samples(machine.run, 1, 3, machine.flush) == [37_000, 10_000, 10_000]


def test_a_host_that_is_always_late_ends(monkeypatch):
    """It is waited for longer each time, to the longest wait; then the sample stands as it is."""
    machine = LateHost(monkeypatch, late=[10_000_000] * 100)
    (sample,) = graph_samples(machine.run, 1, 1, machine.flush)
    assert sample > 10_000
    assert tuple(machine.waits) == WAITS[1:]


def test_a_device_that_has_nothing_to_do_before_is_not_waited_for(monkeypatch):
    """Without a flush every sample begins late; a graph's calls are many then, and nothing is taken again."""
    machine = LateHost(monkeypatch, late=[30_000])
    assert graph_samples(machine.run, 1, 1, None) == [40_000]
    assert not machine.waits


@pytest.mark.gpu
def test_a_late_host_is_not_timed_on_this_device():
    """A host that stands still for half a millisecond between the flush and each launch."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    from opforge.runner.worker.device_clocks import cache_flusher, captured

    source = torch.ones(1 << 26, device="cuda")
    target = torch.empty_like(source)
    replay, flush = captured(lambda: target.copy_(source), 1), cache_flusher(source.device)

    def late():
        time.sleep(5e-4)
        replay()

    honest = sorted(graph_samples(replay, 1, 9, flush))[4]
    assert sorted(event_samples(late, 1, 9, flush))[4] > honest + 3e-4
    assert max(graph_samples(late, 1, 9, flush)) < 1.1 * honest


@pytest.mark.gpu
def test_cold_is_colder_than_warm_on_this_device():
    """The flush must be seen to work on the device at hand."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    from opforge.runner.worker.device_clocks import cold_probe

    warm, cold = cold_probe(torch.device("cuda"))
    assert cold > 1.15 * warm


@pytest.mark.gpu
def test_the_three_device_clocks_agree_on_a_long_kernel():
    """On a kernel of half a millisecond, launches and gaps are nothing."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    from opforge.runner.worker.device_clocks import captured, cupti_samples

    a = torch.randn(4096, 4096, device="cuda")
    out = torch.empty_like(a)

    def call():
        torch.mm(a, a, out=out)

    call()
    found = [
        sorted(samples)[3]
        for samples in (
            event_samples(call, 5, 7, None),
            graph_samples(captured(call, 5), 5, 7, None),
            cupti_samples(call, 5, 7, None),
        )
    ]
    assert max(found) < 1.1 * min(found)


def points(costs, start=64):
    """Points at doubling sizes: seconds given, work equal to the size."""
    from opforge.timing.curve import CurvePoint

    return [
        CurvePoint(
            value=start << place, seconds=seconds, low=seconds * 0.99, high=seconds * 1.01, work=float(start << place)
        )
        for place, seconds in enumerate(costs)
    ]


def test_the_knee_is_where_time_begins_to_follow_the_work():
    """Below it the launch is what one pays for."""
    from opforge.timing.curve import knee

    assert knee(points([10e-6, 10e-6, 11e-6, 10e-6, 20e-6, 40e-6, 80e-6])) in (512, 1024)
    assert knee(points([1e-6 * 2**place for place in range(7)])) is None
    assert knee(points([10e-6] * 7)) is None
    assert knee(points([1e-6, 2e-6])) is None


def test_a_cliff_is_a_jump_of_the_cost():
    """Where a cache ends, or a kernel changes its ways."""
    from opforge.timing.curve import cliffs, words

    curve = points([1e-6, 2e-6, 4e-6, 16e-6, 32e-6])
    (found,) = cliffs(curve)
    assert (found.before, found.after, round(found.factor, 2)) == (256, 512, 2.0)
    assert words("cols", curve) == ("cliff from cols = 256 to 512: 2.00 times the cost per unit of work",)
    assert cliffs(points([1e-6 * 2**place for place in range(7)])) == ()


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("n=128:1024:log", (128, 256, 512, 1024)),
        ("n=100:1000", (100, 200, 400, 800, 1000)),
        ("n=1:10:4", (1, 5, 9)),
        ("n=7,3,3", (3, 7)),
        ("n=1:1000:log4", (1, 10, 100, 1000)),
    ],
)
def test_axes_are_understood(text, values):
    """Ranges by powers, by steps, in a number of values, or listed."""
    from opforge.timing.curve import parse_axis

    assert parse_axis(text).values == values


@pytest.mark.parametrize(
    "text",
    [
        "",
        "n",
        "n=",
        "n=a",
        "n=5:1",
        "n=0:4",
        "n=1:10:0",
        "n=1:100000:1",
        "=1:2",
        "n=1:2:log:3",
        "n=0,4",
        f"n=1:1{'0' * 400}:log5",
    ],
)
def test_axes_that_mean_nothing_are_refused(text):
    """With the form that does."""
    from opforge.core.language.errors import UsageError
    from opforge.timing.curve import parse_axis

    with pytest.raises(UsageError, match="--axis NAME"):
        parse_axis(text)


def test_a_sweep_can_be_drawn():
    """Well-formed whatever the names."""
    import xml.etree.ElementTree as xml

    from opforge.report.sweep_chart import sweep_picture

    lines = {"a<b>": [(128.0, 1e-5), (256.0, 2e-5)], "c": [(128.0, 3e-5)]}
    picture = sweep_picture("softmax & co", "cols", lines, {"c": [(128.0, 0.5)]})
    assert xml.fromstring(picture).tag.endswith("svg")
    # matmul has more implementations than there are colours: no two lines look the same, and no name leaves the picture
    many = {
        f"cpp_an_implementation_with_a_long_name_{place}": [(128.0, 1e-5), (256.0, 2e-5 * place)]
        for place in range(1, 21)
    }
    lines = [
        path
        for path in xml.fromstring(sweep_picture("t", "cols", many, {})).iter()
        if path.tag.endswith("path") and "L" in path.get("d")
    ]
    assert len({(line.get("stroke"), line.get("stroke-dasharray")) for line in lines}) == 20
    assert "with_a_long_name_3<" not in sweep_picture("t", "cols", many, {})


def test_a_range_of_more_values_than_it_has_still_ends_at_its_end():
    """Ten sizes asked for in a hundred steps are ten, and not the first four."""
    from opforge.timing.curve import parse_axis

    assert parse_axis("n=1:10:log100").values == tuple(range(1, 11))
    assert parse_axis("n=1:1000000:log100").values[-1] == 1000000


def test_an_unsteady_row_asks_for_what_would_help():
    """Sampling goes on until the budget is spent: more samples in the same budget are not taken."""
    (words,) = timing([1.0, 2.0] * 5, batch=1000).unsteady
    assert "twice the --budget" in words and "--samples" not in words


def test_a_median_that_leaves_out_what_other_samples_wait_for_is_seen():
    """On an H200 calls of 105 us told 55 us in most samples and waited for all of it in the others: their sum was
    right, and the median half of it. Work on a side stream, which is waited for after a pause only."""

    def asked_for(medians_s, claimed_s, took_s):
        def ask(question):
            time.sleep(took_s * question.batch * question.count)
            # the first waits for what the others leave undone
            first = (claimed_s - medians_s) * question.count + medians_s
            return Samples(samples=(first, *[medians_s] * (question.count - 1)), batch=question.batch)

        candidate = Candidate(name="c", proof=PROOF, ask=ask, launch=1, timer="cuda_event", batch=10)
        timing = Timing(
            samples_s=(medians_s,), batch=10, timer="cuda_event", cache="warm", overhead_s=0.0, conditions=()
        )
        return audit.outgrown(candidate, timing)

    told = asked_for(55e-6, 100e-6, 105e-6)
    assert told is not None and "by this process's clock and 55" in told
    assert asked_for(100e-6, 100e-6, 105e-6) is None
