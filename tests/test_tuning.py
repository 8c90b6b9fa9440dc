"""Tuning: what is tried and in which order, what is not tried twice, and that only what passed is kept. The kernels are
C++, compiled here.
"""

import importlib.util
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from opforge.backends import native
from opforge.backends.cuda import Cuda
from opforge.core.definition.implementation import Config, Implementation
from opforge.core.definition.shapes import shape_class
from opforge.core.evidence.verdict import Broken, Mismatch, Pass, Unsupported
from opforge.core.language.errors import EnvironmentLacks, UsageError
from opforge.core.language.user_folders import data_folder
from opforge.dispatch.choose import Chooser
from opforge.machine import detect
from opforge.registry import load
from opforge.registry.tuned_choices import (
    choice_files,
    choice_for,
    choices_path,
    choices_together,
    chosen,
    give_way,
    keep,
)
from opforge.runner import Isolated
from opforge.timing import Plan
from opforge.trial import Setting
from opforge.tuning import TuneOptions, compile_first, final, job, space, tune, valid_points
from opforge.tuning.codes import Codes, CompiledCode, CompileRefused, code_of_library
from opforge.tuning.compile_queue import LATER, NOW, Compilers
from opforge.tuning.device_lock import alone_on
from opforge.tuning.job import _late
from opforge.tuning.space import compile_ahead, within_reach
from opforge.tuning.tune import in_time
from opforge.tuning.workers import SearchWorkers
from simulated import make_home, record

KERNEL = """// y = 2x, as slowly as it is told to.
/* opforge
space = {REPEATS = [1, 40], IDLE = [0, 1], FLAW = ["none", "wrong", "unbuildable"]}
default = {REPEATS = 40, IDLE = 0, FLAW = "none"}
[limits]
idle_points_have_no_flaw = "IDLE == 0 or FLAW == 'none'"
slow_points_have_no_flaw = "REPEATS == 1 or FLAW == 'none'"
*/
#include "opforge/host.h"

#define none 0
#define wrong 1
#define unbuildable 2
static_assert(FLAW != unbuildable, "this point is not for building");

namespace {

void twice(opforge::TensorView x, opforge::TensorView y) {
  const float* in = static_cast<const float*>(x.data_ptr());
  volatile float* out = static_cast<float*>(y.data_ptr());
  for (int r = 0; r < REPEATS; ++r) {
    for (int64_t i = 0; i < x.numel(); ++i) out[i] = in[i] * (FLAW == wrong ? 3.0f : 2.0f);
  }
}

}  // namespace

OPFORGE_EXPORT(run, twice)
"""


def implementation(**space):
    """An implementation with a space, and the first value of each parameter as its default."""
    default = Config(tuple((name, values[0]) for name, values in space.items()))
    return Implementation(
        name="cpp_x",
        operator="x",
        backend="cpp",
        source=None,
        idea="",
        space=space,
        limits={"small": "A * B <= 8"},
        default=default,
    )


def test_points_beyond_a_limit_are_counted_and_not_tried():
    """The reason is the limit's own name, so that a reader can see what took the space away."""
    points, refused = valid_points(implementation(A=(1, 2, 4), B=(1, 2, 4)), {"n": 1}, "float32", 4, {})
    assert len(points) == 8
    assert refused == {"not small": 1}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with `twice`, whose C++ implementation has points that are slow, wrong, unbuildable, or each other's
    copies.
    """
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))  # a search that was cut short goes on elsewhere
    folder = make_home(tmp_path) / "twice"
    (folder / "cpp_repeats.cpp").write_text(KERNEL)
    definition = (
        (folder / "op.py")
        .read_text()
        .replace("'torch_eager', 'torch_slow', 'torch_wrong'", "'cpp_repeats', 'torch_eager'")
    )
    (folder / "op.py").write_text(definition)
    return folder.parent


def tuned(home, **options):
    """The outcome of tuning `twice` with every point tried, the trials, and the records."""
    records, trials = [], []
    plan = Plan(samples=5, budget_s=0.05)
    host = Isolated()
    try:
        (found,) = tune(
            load([home]),
            "twice",
            TuneOptions(implementations=("cpp_repeats",), trials=0, plan=plan, **options),
            host,
            add=records.append,
            listener=trials.append,
        )
    finally:
        host.close()
    return found, trials, records


@pytest.mark.campaign
def test_a_space_is_searched_and_the_fastest_right_point_is_kept(home):
    """The whole way: slow, wrong, unbuildable and duplicate points each end as what they are, and dispatch would take
    the winner.
    """
    found, trials, records = tuned(home)
    outcomes = {
        (trial.config.as_dict()["REPEATS"], trial.config.as_dict()["IDLE"], trial.config.as_dict()["FLAW"]): trial
        for trial in trials
    }
    assert len(outcomes) == 6
    assert outcomes[1, 0, "wrong"].outcome == "failed" and isinstance(outcomes[1, 0, "wrong"].record.verdict, Mismatch)
    assert (
        outcomes[1, 0, "unbuildable"].outcome == "failed" and "not for building" in outcomes[1, 0, "unbuildable"].reason
    )
    # IDLE is not in the code: of each pair one was measured, and the other says so
    for repeats in (1, 40):
        pair = sorted(outcomes[repeats, idle, "none"].outcome for idle in (0, 1))
        assert pair == ["same code", "timed"]
    assert found.record.config.as_dict()["REPEATS"] == 1
    assert found.over_default is not None and found.over_default < 0.5
    assert (found.timed, found.same_code, found.failed) == (2, 2, 2)
    # every trial is on record, and the winner once more with its full verification
    assert len(records) == 7 and {trial.record.id for trial in trials} < {item.id for item in records}
    assert all(
        isinstance(item.verdict, Unsupported)
        for item in records
        if item.config == next(t.config for t in trials if t.outcome == "same code")
    )
    operator = load([home]).operator("twice")
    entry = choice_for(choices_path(operator, "cpu"), "float32", found.record.axes, {}) or choice_for(
        choices_path(operator, found.record.device), "float32", found.record.axes, {}
    )
    assert entry.implementation == "cpp_repeats" and entry.config.as_dict()["REPEATS"] == 1
    assert entry.record == records[-1].id and isinstance(records[-1].verdict, Pass)


def codes_of(home, compilers):
    registry = load([home])
    return Codes(
        registry,
        registry.implementation("twice", "cpp_repeats"),
        {"rows": 4, "cols": 8},
        "float32",
        {},
        "cpu",
        "host",
        compilers,
    )


def point(codes, **values):
    return Config(tuple((codes.implementation.default.as_dict() | values).items()))


@pytest.mark.campaign
def test_what_the_compiler_refused_ahead_is_not_compiled_again(home, monkeypatch):
    """nvcc may take a minute to refuse a point: what it said is the point's outcome, and no process binds it to hear
    the same again.
    """
    tried = []

    def attempt(job, implementation, config, incumbent, then=space.attempt):
        tried.append(config.as_dict()["FLAW"])
        return then(job, implementation, config, incumbent)

    monkeypatch.setattr(space, "attempt", attempt)
    _, trials, records = tuned(home)
    (refused,) = (trial for trial in trials if trial.config.as_dict()["FLAW"] == "unbuildable")
    assert "unbuildable" not in tried and "wrong" in tried
    assert refused.outcome == "failed" and "not for building" in refused.reason
    assert (
        refused.record in records
        and isinstance(refused.record.verdict, Broken)
        and "Run this to see it whole" in refused.record.verdict.reason
    )


@pytest.mark.parametrize(
    ("error", "answer"),
    [(EnvironmentLacks("no cuobjdump"), None), (ValueError("a bug"), ValueError), (OSError("disk full"), OSError)],
)
def test_what_compiling_ahead_raised_is_raised_where_it_is_asked_for(home, monkeypatch, error, answer):
    """A missing tool says nothing of the point, which is tried; anything else is a mistake of ours or the machine's,
    and no reason to go on in silence.
    """

    def library(*asked):
        raise error

    compilers = Compilers(1)
    codes = codes_of(home, compilers)
    monkeypatch.setattr(native, "library", library)
    try:
        if answer is None:
            assert codes.of(point(codes, FLAW="none")) is None
        else:
            with pytest.raises(answer, match=str(error)):
                codes.of(point(codes, FLAW="none"))
    finally:
        compilers.close()


def test_a_point_has_a_code_or_was_refused(home):
    compilers = Compilers(1)
    codes = codes_of(home, compilers)
    try:
        assert isinstance(codes.of(point(codes, FLAW="none")), CompiledCode)
        refused = codes.of(point(codes, FLAW="unbuildable"))
    finally:
        compilers.close()
    assert isinstance(refused, CompileRefused) and "not for building" in refused.reason


@pytest.mark.campaign
def test_dispatch_takes_what_was_tuned(home, tmp_path):
    """The file is written for the chooser: its config, not the default, is what a call of that shape gets."""
    from opforge.store import Store

    _, _, records = tuned(home)
    url = f"sqlite:///{tmp_path / 'tuned.sqlite'}"
    with Store.open(url) as store:
        store.add(records)
    registry = load([home])
    choice = Chooser(registry, url).choose(
        registry.operator("twice"), {"rows": 60, "cols": 252}, "float32", {}, "cpu", ["contiguous"]
    )
    assert choice.implementation.name == "cpp_repeats"
    assert choice.config.as_dict()["REPEATS"] == 1
    assert "tuned/" in choice.why


@pytest.mark.campaign
def test_a_choice_for_another_version_of_the_source_is_passed_over(home, tmp_path):
    """Its parameters were the best of a kernel that is not there any more, and nobody has verified them with
    this one.
    """
    from opforge.store import Store

    _, _, records = tuned(home)
    (path,) = (home / "twice" / "tuned").iterdir()
    kept = json.loads(path.read_text())
    kept["choices"][0]["source_sha256"] = "0" * 64
    path.write_text(json.dumps(kept))
    # as after an edit of a comment: the text is another, the program is the same
    with Store.open(f"sqlite:///{tmp_path / 'all.sqlite'}") as store:
        store.add(records)
    registry = load([home])
    call = (registry.operator("twice"), {"rows": 60, "cols": 252}, "float32", {}, "cpu", ["contiguous"])
    assert "tuned/" in Chooser(registry, f"sqlite:///{tmp_path / 'all.sqlite'}").choose(*call).why
    kept["choices"][0]["code_sha256"] = "0" * 64
    path.write_text(json.dumps(kept))
    url = f"sqlite:///{tmp_path / 'tuned.sqlite'}"
    with Store.open(url) as store:
        # as a bench of the default would have left it
        store.add(
            [
                replace(item, trial=False, run="")
                for item in records
                if item.config.as_dict()["REPEATS"] == 40 and isinstance(item.verdict, Pass)
            ]
        )
    choice = Chooser(registry, url).choose(*call)
    assert choice.config.as_dict()["REPEATS"] == 40 and "tuned/" not in choice.why
    assert any(
        "another version of its source" in reason and "opforge tune twice" in reason for _, reason in choice.passed_over
    )


SLOW = """// y = 2x, a little slower with every step.
/* opforge
space = {STEPS = [1, 4, 8, 12]}
default = {STEPS = 8}
*/
#include <chrono>
#include <thread>
#include "opforge/host.h"
namespace {
void twice(opforge::TensorView x, opforge::TensorView y) {
  std::this_thread::sleep_for(std::chrono::milliseconds(2 * STEPS));
  const float* in = static_cast<const float*>(x.data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) static_cast<float*>(y.data_ptr())[i] = in[i] * 2.0f;
}
}  // namespace
OPFORGE_EXPORT(run, twice)
"""


@pytest.mark.campaign
def test_points_that_are_much_slower_than_the_best_are_not_looked_at_any_further(home):
    """They are most of a space. A full verification of each costs more than everything else. They are not timed, and
    say why.
    """
    (home / "twice" / "cpp_repeats.cpp").write_text(SLOW)
    found, trials, _ = tuned(home)
    slower = [trial for trial in trials if trial.outcome == "slower"]
    assert {trial.config.as_dict()["STEPS"] for trial in slower} >= {12}
    assert found.slower == len(slower) and found.timed + found.slower == 4
    for trial in slower:
        assert trial.ratio > 1.1 and "as long as the best" in trial.reason
        assert trial.record.timing is None and isinstance(trial.record.verdict, Unsupported)
    assert found.record.config.as_dict()["STEPS"] == 1 and isinstance(found.record.verdict, Pass)
    # a point that might have become a choice was verified on the operator's cases, not on the workload alone
    assert all(len(trial.record.verdict.checked) > 1 for trial in trials if trial.outcome == "timed")


@pytest.mark.campaign
def test_beside_a_gpu_compilers_work_while_points_are_measured(home, monkeypatch):
    """The same search with other waiting: nothing is lost or tried twice when points come in the order in which they
    are compiled.
    """
    for module in (space, sys.modules[tune.__module__]):
        monkeypatch.setattr(module, "beside_kernels", lambda device: True)
    definition = home / "twice" / "op.py"
    more = "workloads=(Workload(name='other', axes={'rows': 8, 'cols': 64}, source='a test', scale='laptop'), "
    definition.write_text(definition.read_text().replace("workloads=(", more))
    host, both = Isolated(), []
    try:
        options = TuneOptions(implementations=("cpp_repeats",), trials=0, plan=Plan(samples=5, budget_s=0.05), jobs=2)
        outcomes = list(
            tune(load([home]), "twice", options, host, add=lambda record: None, listener=both.append, write=False)
        )
    finally:
        host.close()
    assert [item.workload for item in outcomes] == list(dict.fromkeys(trial.workload for trial in both)) and len(
        outcomes
    ) == 2
    assert outcomes[0].workload == "other" and outcomes[0].record is not None
    found, trials = outcomes[1], [trial for trial in both if trial.workload != "other"]
    assert trials[0].config == load([home]).implementation("twice", "cpp_repeats").default
    assert sorted((trial.number, trial.total) for trial in trials) == [(number, 6) for number in range(1, 7)]
    assert len({trial.config for trial in trials}) == 6
    assert (found.timed, found.slower, found.same_code, found.failed) in {(2, 0, 2, 2), (1, 1, 2, 2)}
    assert found.record.config.as_dict()["REPEATS"] == 1


@pytest.mark.campaign
def test_who_is_far_behind_is_searched_last_and_stays_out_of_the_final(home):
    """With little time a search of the fast implementation is worth more than a point of each; what the slow one took
    is said all the same.
    """
    (home / "twice" / "cpp_repeats.cpp").write_text(SLOW)
    (home / "twice" / "cpp_behind.cpp").write_text(
        SLOW.replace("[1, 4, 8, 12]", "[40, 44]").replace("STEPS = 8", "STEPS = 40")
    )
    definition = home / "twice" / "op.py"
    definition.write_text(definition.read_text().replace("'cpp_repeats', ", "'cpp_behind', 'cpp_repeats', "))
    trials, host = [], Isolated()
    try:
        options = TuneOptions(backends=("cpp",), trials=0, plan=Plan(samples=5, budget_s=0.05))
        (found,) = tune(load([home]), "twice", options, host, add=lambda record: None, listener=trials.append)
    finally:
        host.close()
    assert [trial.implementation for trial in trials] == [
        "cpp_behind",
        "cpp_repeats",
        *["cpp_repeats"] * 3,
        "cpp_behind",
    ]
    assert found.record.implementation == "cpp_repeats"
    ((name, config, ratio),) = found.others
    assert name == "cpp_behind" and config.as_dict()["STEPS"] == 40 and ratio > 2


@pytest.mark.campaign
def test_who_is_far_behind_is_chosen_where_all_before_it_fail_the_last_verification(home, monkeypatch):
    """A kernel that is wrong in a hidden case must not take a right and slow one out of the choice."""
    (home / "twice" / "cpp_repeats.cpp").write_text(SLOW.replace("[1, 4, 8, 12]", "[8]"))
    (home / "twice" / "cpp_behind.cpp").write_text(
        SLOW.replace("[1, 4, 8, 12]", "[40]").replace("STEPS = 8", "STEPS = 40")
    )
    definition = home / "twice" / "op.py"
    definition.write_text(definition.read_text().replace("'cpp_repeats', ", "'cpp_behind', 'cpp_repeats', "))

    def strict(cases, implementation, dtype, effort, config, then=final.check):
        return (
            Unsupported(reason="wrong in a hidden case")
            if implementation.name == "cpp_repeats"
            else then(cases, implementation, dtype, effort, config)
        )

    monkeypatch.setattr(final, "check", strict)
    host = Isolated()
    try:
        options = TuneOptions(backends=("cpp",), trials=0, plan=Plan(samples=5, budget_s=0.05))
        (found,) = tune(load([home]), "twice", options, host, add=lambda record: None)
    finally:
        host.close()
    assert found.record.implementation == "cpp_behind" and found.kept


def test_within_reach_are_those_near_the_fastest_default():
    """Who did not pass is not near, and if nobody passed nobody is."""
    assert within_reach({"a": 3.0, "b": 1.0, "c": 2.0, "d": float("inf")}) == (["b", "c"], ["a", "d"])
    assert within_reach({"a": float("inf"), "b": float("inf")}) == ([], ["a", "b"])
    assert within_reach({}) == ([], [])


@pytest.mark.campaign
def test_what_was_found_is_kept_when_the_search_is_told_to_stop(home):
    """Whoever loses patience, or the machine, after an hour must not lose the hour."""
    (home / "twice" / "cpp_repeats.cpp").write_text(SLOW)
    asked = []

    def stop():
        return len(asked) >= 2

    records = []
    host = Isolated()
    try:
        options = TuneOptions(implementations=("cpp_repeats",), trials=0, plan=Plan(samples=5, budget_s=0.05))
        (found,) = tune(load([home]), "twice", options, host, add=records.append, listener=asked.append, stop=stop)
    finally:
        host.close()
    assert len(asked) == 2 and found.kept and found.timed + found.slower == 2
    assert (
        choice_for(
            choices_path(load([home]).operator("twice"), found.record.device), "float32", found.record.axes, {}
        ).config
        == found.record.config
    )


def test_compilers_end_with_their_time_where_kernels_want_the_same_processors(monkeypatch):
    """`opforge tune --limit 30` compiled all sixty-four points of a CPU kernel first, which took ten minutes, and
    measured none of them.
    """
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    begun: list[int] = []

    class Slow:
        def ahead(self, configs, urgency):
            begun.extend(configs)

        def of(self, config, stop):
            now[0] += 10.0

    job = SimpleNamespace(options=SimpleNamespace(device="cpu"), stop=lambda: False, compilers=SimpleNamespace(jobs=2))
    space = SimpleNamespace(one_point=False, codes=Slow())
    compile_ahead(job, space, list(range(64)), LATER, until=30.0)
    assert begun == [0, 1, 2, 3]
    begun.clear()
    compile_ahead(job, space, [7], LATER)
    assert begun == [7], "the default is compiled however late it is"


@pytest.mark.campaign
def test_a_limit_ends_the_search_and_the_final_is_held(home):
    """Time on a device is lent: at the end of it a choice must stand."""
    (home / "twice" / "cpp_repeats.cpp").write_text(SLOW)
    found, trials, _ = tuned(home, limit_s=0.01)
    # the default is always tried: without it there is no choice at all
    assert [trial.config.as_dict()["STEPS"] for trial in trials] == [8]
    assert found.kept and found.over_default == 1.0


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("word", "outcome"),
    [("std::abort();", "Crash"), ("for (volatile int i = 0;; ++i) {}", "Timeout: no answer within 2 s")],
)
def test_a_point_that_crashes_or_hangs_is_recorded_and_the_others_go_on(home, word, outcome):
    """One bad point must cost its own time and no more, and say what it did."""
    source = SLOW.replace("[1, 4, 8, 12]", "[1, 2, 3]").replace("STEPS = 8", "STEPS = 3")
    (home / "twice" / "cpp_repeats.cpp").write_text(
        source.replace("  for (int64_t i", f"  if (STEPS == 2) {word}\n  for (int64_t i").replace(
            "<chrono>", "<chrono>\n#include <cstdlib>"
        )
    )
    found, trials, records = tuned(home, hang_s=2.0)
    bad = next(trial for trial in trials if trial.config.as_dict()["STEPS"] == 2)
    assert bad.outcome == "failed" and bad.reason.startswith(outcome)
    assert bad.record in records and bad.record.timing is None
    assert len(trials) == 3 and found.record.config.as_dict()["STEPS"] == 1


@pytest.mark.campaign
def test_what_will_be_tried_can_be_compiled_before(home, tmp_path, monkeypatch):
    """Minutes of compilers are not minutes of a device: they may have worked before it is lent."""
    monkeypatch.setenv("OPFORGE_CACHE", str(tmp_path / "cache"))
    options = TuneOptions(implementations=("cpp_repeats",), trials=0)
    assert compile_first(load([home]), "twice", options) == (5, 6)
    made = set((tmp_path / "cache" / "native").iterdir())
    assert len([folder for folder in made if (folder / "kernel.so").is_file()]) == 5


@pytest.mark.campaign
def test_one_signal_ends_the_search_and_keeps_what_was_found(home):
    """As `timeout -s INT` does on a machine that is lent."""
    (home / "twice" / "cpp_repeats.cpp").write_text(SLOW)
    command = [
        sys.executable,
        "-m",
        "opforge",
        "--home",
        str(home),
        "tune",
        "twice",
        "-i",
        "cpp_repeats",
        "--device",
        "cpu",
        "--trials",
        "0",
        "--budget",
        "0.05",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if " 2/4 " in line:
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "no more points are begun" in err and "Traceback" not in err
    assert "kept in" in out and (home / "twice" / "tuned").is_dir()


def test_compilers_take_what_is_urgent_first_and_stop_when_told():
    """The neighbours of the best must not queue behind the spaces that come later."""
    begun, hold = [], threading.Event()
    compilers = Compilers(1)
    compilers.submit(lambda: (begun.append("first"), hold.wait(10)), LATER)
    while not begun:
        time.sleep(0.001)
    for name, urgency in (("later", LATER), ("now", NOW), ("later still", LATER)):
        compilers.submit(lambda name=name: begun.append(name), urgency)
    hold.set()
    while len(begun) < 4:
        time.sleep(0.001)
    assert begun == ["first", "now", "later", "later still"]
    compilers.close()
    compilers.submit(lambda: begun.append("too late"), NOW)
    assert begun[-1] == "later still"


def test_what_waits_for_a_compiler_comes_forward_when_it_is_urgent_and_is_compiled_once(monkeypatch):
    """Whose default proved fast is compiled before those that were handed in earlier."""
    compilers, made, hold = Compilers(1), [], threading.Event()
    source = implementation(A=tuple(range(8)), B=(1,))
    codes = Codes(None, source, {"n": 1}, "float32", {}, "cuda", "sm_90a", compilers)
    monkeypatch.setattr(
        codes, "_compile", lambda group: (hold.wait(10), made.extend(config.as_dict()["A"] for config in group))
    )
    points = list(source.configs())[:4]
    codes.ahead(points, LATER)
    codes.ahead(points[3:], NOW)
    hold.set()
    assert codes.of(points[2]) is None and all(codes.known(point) for point in points[2:])
    codes.of(points[1])
    compilers.close()
    assert sorted(made) == [0, 1, 2, 3] and made.index(3) < made.index(2)


LAUNCH = """
#include "opforge/device.h"
template <int N>
__global__ void twice(const float* x, float* y) {
  float kept[64];
  for (int i = 0; i < 64; ++i) kept[i] = x[i * N];
  for (int i = 0; i < 64 * SPILL; ++i) kept[int(x[i]) & 63] += y[i];
  y[threadIdx.x] = SPILL ? kept[int(x[threadIdx.x]) & 63] : x[threadIdx.x] * 2;
}
void launch(opforge::TensorView x, opforge::TensorView y) { twice<1><<<1, THREADS>>>(static_cast<float*>(x.data_ptr()),
    static_cast<float*>(y.data_ptr())); }
OPFORGE_EXPORT(run, launch)
"""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc to compile for a GPU")
@pytest.mark.offline
def test_a_gpu_library_is_told_by_what_is_executed_the_launch_included(tmp_path):
    """Names that nvcc makes from the command line are no difference. A block's size is one, though no instruction of
    the kernel shows it.
    """
    source = tmp_path / "cuda_x.cu"
    source.write_text(LAUNCH)
    made = Implementation(
        name="cuda_x", operator="x", backend="cuda", source=source, idea="", space={}, limits={}, default=Config(())
    )

    def code(**values):
        library = native.library(made, Config(tuple(values.items())), Cuda().device_toolchain("sm_90a"))
        return code_of_library(library.path)

    first = code(THREADS=128, SPILL=0, IDLE=1)
    assert first.stack_bytes == 0
    assert code(THREADS=128, SPILL=0, IDLE=22222) == first
    assert code(THREADS=256, SPILL=0, IDLE=1).sha256 != first.sha256
    spilled = code(THREADS=128, SPILL=1, IDLE=1)
    assert spilled.sha256 != first.sha256 and spilled.stack_bytes >= 256


def test_a_choice_replaces_its_own_class_alone(home):
    """Tuning one dtype or shape must not forget the others."""
    operator = load([home]).operator("twice")
    path = choices_path(operator, "here")
    small, large = record(), record()
    object.__setattr__(large, "axes", {"n": 4096})
    for item in (small, large, small):
        keep(path, item, over_default=None, trials=1, failed=0)
    written = json.loads(path.read_text())["choices"]
    assert [tuple(entry["shape_class"].items()) for entry in written] == [
        shape_class(small.axes),
        shape_class(large.axes),
    ]


def test_a_choice_for_our_own_operator_lies_with_the_user_and_is_read_first(monkeypatch):
    """An installed package is shared between users, and a git tree of ours was left dirty by every search."""
    operator = load().operator("softmax")
    mine, ships = choice_files(operator, "here")
    assert ships == operator.folder / "tuned" / "here.json"
    assert mine == data_folder() / "tuned" / "softmax" / "here.json" == choices_path(operator, "here")
    assert choices_path(operator, "here", into_package=True) == ships
    call = ("float32", record().axes, {})
    assert chosen(operator, "here", *call) is None
    monkeypatch.setattr("opforge.registry.tuned_choices.shipped_path", lambda *_: mine.parent / "ships" / "here.json")
    shipped = mine.parent / "ships" / "here.json"
    keep(shipped, replace(record(), id="ships"), over_default=None, trials=1, failed=0)
    assert chosen(operator, "here", *call).record == "ships"
    keep(mine, replace(record(), id="mine"), over_default=None, trials=1, failed=0, unsure=True)
    assert (chosen(operator, "here", *call).record, chosen(operator, "here", *call).unsure) == ("mine", True)
    assert [item["record"] for item in choices_together(operator)["here.json"]["choices"]] == ["mine"]
    # what a developer writes into the package must not be hidden by the choice that it beat
    give_way(operator, record(), shipped, factors="float32", kind={})
    assert chosen(operator, "here", *call).record == "ships"


def test_a_folder_of_the_users_own_keeps_its_choices_unless_it_is_read_only(home, monkeypatch):
    """Two folders may hold an operator of one name: the place tells them apart in the data folder."""
    operator = load([home]).operator("twice")
    assert choices_path(operator, "here") == home / "twice" / "tuned" / "here.json"
    monkeypatch.setattr("opforge.registry.tuned_choices.os.access", lambda folder, mode: False)
    kept = choices_path(operator, "here")
    assert kept.parent.parent == data_folder() / "tuned" and re.fullmatch("twice-[0-9a-f]{8}", kept.parent.name)
    assert kept == choice_files(operator, "here")[0]


def test_a_choice_of_unsteady_times_is_marked_and_keeps_no_place_in_a_tie(home, monkeypatch):
    """It was kept like any other: the next search believed it, and a quiet machine could not undo it."""
    path = choices_path(load([home]).operator("twice"), "here")
    for unsure in (True, False):
        keep(path, record(), over_default=None, trials=1, failed=0, unsure=unsure)
        kept = choice_for(path, "float32", record().axes, {})
        assert kept.unsure is unsure
        monkeypatch.setattr(final, "former_choice", lambda job, kept=kept: kept)
        assert final._there(None) == (None if unsure else (kept.implementation, kept.config))


def test_searches_that_end_at_once_keep_their_choices_both(home):
    """One on each GPU: whoever reads, adds and replaces without holding the file loses what the other wrote
    meanwhile.
    """
    path = choices_path(load([home]).operator("twice"), "here")
    items = [record() for _ in range(24)]
    for place, item in enumerate(items):
        object.__setattr__(item, "axes", {"n": 4**place})
    threads = [
        threading.Thread(target=keep, args=(path, item), kwargs={"over_default": None, "trials": 1, "failed": 0})
        for item in items
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(json.loads(path.read_text())["choices"]) == len({shape_class(item.axes) for item in items}) == 24
    assert [item.name for item in path.parent.iterdir()] == [path.name]


def test_a_choice_is_for_the_kind_of_call_that_was_tuned(home):
    """Tiles and blocks of one matrix are other work for the same shape: what was tuned last must not serve both."""
    registry = load()
    operator = registry.operator("quantize_fp8")
    kinds = [operator.kind_of_call({"scaling": scaling}) for scaling in ("tile", "block")]
    assert kinds[0] == {"scaling": "tile", "q_dtype": "float8_e4m3fn"}
    assert load().operator("rmsnorm").kind_of_call({"eps": 1e-3}) == {}
    path = choices_path(load([home]).operator("twice"), "here")
    for kind in (*kinds, kinds[1]):
        keep(path, replace(record(), id=kind["scaling"]), over_default=None, trials=1, failed=0, kind=kind)
    assert len(json.loads(path.read_text())["choices"]) == 2
    assert choice_for(path, "float32", record().axes, kinds[0]).record == "tile"
    assert choice_for(path, "float32", record().axes, {}) is None


def test_a_damaged_file_of_choices_says_what_to_do(home):
    """A half-written file must not be taken for no choice at all, or overwritten."""
    path = choices_path(load([home]).operator("twice"), "here")
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(UsageError, match="tune again"):
        keep(path, record(), over_default=None, trials=1, failed=0)


@pytest.mark.campaign
def test_the_verb_ends_with_1_when_no_point_passes(home):
    """A script that tunes must notice that nothing was chosen."""
    source = home / "twice" / "cpp_repeats.cpp"
    source.write_text(KERNEL.replace("3.0f : 2.0f", "3.0f : 2.5f"))
    command = [
        sys.executable,
        "-m",
        "opforge",
        "--home",
        str(home),
        "tune",
        "twice",
        "-i",
        "cpp_repeats",
        "--device",
        "cpu",
        "--trials",
        "1",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    assert answer["tuned"][0]["implementation"] is None
    assert answer["trials"][0]["outcome"] == "failed" and answer["trials"][0]["reason"].startswith("Mismatch")
    assert not (home / "twice" / "tuned").exists()


def test_trials_are_no_steps_in_a_history(tmp_path):
    """A slow point that was tried is not the implementation having become slow."""
    from opforge.gate import series_of
    from opforge.store import Store

    with Store.open(f"sqlite:///{tmp_path / 'history.sqlite'}") as store:
        store.add(
            [record(1e-3, day=0, run="bench"), record(9e-3, day=1, run="tune-1"), record(1e-3, day=2, run="bench")]
        )
        (series,) = series_of(store.series(operator="softmax", timed=True))
    assert [point.run for point in series.points] == ["bench", "bench"]


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"choices": 3}', '{"choices": [3]}', '{"choices": [{"dtype": "float32"}]}']
)
def test_damaged_choices_are_said_before_the_search(home, text):
    """After an hour of measuring is too late, and a trace is no answer."""
    path = choices_path(load([home]).operator("twice"), detect("cpu").name)
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(UsageError, match="Remove it and tune again"):
        next(tune(load([home]), "twice", TuneOptions(), None, add=lambda record: None))


def test_a_choice_that_cannot_be_written_leaves_nothing_behind(home, monkeypatch):
    """A full disk must not fill the operator's folder with the beginnings of files."""
    path = choices_path(load([home]).operator("twice"), "here")

    def full(*words, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("opforge.registry.tuned_choices.json.dump", full)
    with pytest.raises(UsageError, match="No space left"):
        keep(path, record(), over_default=None, trials=1, failed=0)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"choices": [{"dtype": "float32"}]}',
        '{"choices": [{"dtype": "float32", "shape_class": {"cols": 8, "rows": 6}}]}',
    ],
)
def test_a_call_goes_on_beside_damaged_choices(home, tmp_path, text):
    """A file that only says how to be faster must not end a model's call with a trace; why() says what to do."""
    registry = load([home])
    path = choices_path(registry.operator("twice"), detect("cpu").name)
    path.parent.mkdir()
    path.write_text(text)
    chooser = Chooser(registry, f"sqlite:///{tmp_path / 'none.sqlite'}")
    choice = chooser.choose(registry.operator("twice"), {"rows": 60, "cols": 252}, "float32", {}, "cpu", ["contiguous"])
    assert choice.implementation.name == "torch_eager"
    assert any("it is damaged" in reason and "opforge tune twice" in reason for _, reason in choice.passed_over)


@pytest.mark.campaign
def test_a_search_cut_short_does_not_replace_what_was_better(home):
    """Ctrl-C after the default was measured must not put the default in the place of what a whole search had found."""
    (home / "twice" / "cpp_repeats.cpp").write_text(SLOW)
    first, _, _ = tuned(home)
    assert first.record.config.as_dict() == {"STEPS": 1}
    asked = []
    host = Isolated()
    try:
        options = TuneOptions(implementations=("cpp_repeats",), trials=0, plan=Plan(samples=5, budget_s=0.05))
        (second,) = tune(
            load([home]),
            "twice",
            options,
            host,
            add=lambda record: None,
            listener=asked.append,
            stop=lambda: len(asked) >= 1,
        )
    finally:
        host.close()
    assert [trial.config.as_dict() for trial in asked] == [{"STEPS": 8}]
    assert second.record.config.as_dict() == {"STEPS": 1}


def test_a_folder_that_cannot_be_written_is_said_before_the_search(home, monkeypatch):
    """The operators of an installed package lie where not everybody may write; a dry run needs no place."""
    monkeypatch.setattr("opforge.registry.tuned_choices.os.access", lambda folder, mode: False)
    with pytest.raises(UsageError, match=r"is not writable.*or say --dry-run"):
        next(tune(load([home]), "twice", TuneOptions(), None, add=lambda record: None))
    with pytest.raises(UsageError, match="nothing is defined for float16"):
        next(tune(load([home]), "twice", TuneOptions(dtypes=("float16",)), None, add=lambda record: None, write=False))


SLOPPY = """// y = 2x: quickly and a little off, or exactly and slowly.
/* opforge
space = {EXACT = [0, 1]}
default = {EXACT = 0}
*/
#include <chrono>
#include <thread>
#include "opforge/host.h"
namespace {
void twice(opforge::TensorView x, opforge::TensorView y) {
  std::this_thread::sleep_for(std::chrono::milliseconds(EXACT ? 6 : 2));
  const float* in = static_cast<const float*>(x.data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) {
    static_cast<float*>(y.data_ptr())[i] = in[i] * (EXACT ? 2.0f : 2.0f * (1 + 0x1p-23f));
  }
}
}  // namespace
OPFORGE_EXPORT(run, twice)
"""


@pytest.mark.campaign
def test_weights_steer_the_search_and_the_final(home):
    """By time the quick point wins; by nine parts of error to one of time the exact one does. Both are on the front."""
    (home / "twice" / "cpp_repeats.cpp").write_text(SLOPPY)
    by_time, _, _ = tuned(home)
    assert by_time.record.config.as_dict() == {"EXACT": 0}
    weighed, trials, _ = tuned(home, weights={"time": 0.1, "error": 0.9})
    assert weighed.record.config.as_dict() == {"EXACT": 1} and weighed.over_default > 2
    assert [trial.outcome for trial in trials] == ["timed", "timed"]
    front = {tuple(config.as_dict().items()): cost for _, config, cost in weighed.front}
    assert len(front) == 2 and front[("EXACT", 1),]["error"] < front[("EXACT", 0),]["error"]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton to compile for a GPU")
@pytest.mark.offline
def test_what_a_compiled_point_uses_comes_with_its_code():
    """Registers, shared memory, threads and the grid of the launch, through the process that compiles."""
    registry, compilers = load(), Compilers(1)
    try:
        chosen = registry.implementation("softmax", "triton_online")
        shape = {"lead": (64,), "cols": 4096}
        code = Codes(registry, chosen, shape, "float16", {}, "cuda", "sm_90a", compilers).of(chosen.default)
    finally:
        compilers.close()
    assert code.use.registers > 16 and code.use.threads % 32 == 0 and code.use.blocks == 64
    assert code.use.stack_bytes == code.stack_bytes == 0 and code.use.shared_bytes < 232448


@pytest.mark.campaign
def test_processes_are_kept_for_the_next_point_and_who_is_far_behind_gives_its_own_up(home, monkeypatch):
    """As beside a GPU: nothing is lost or tried twice, no point finds what another left, and the winner's default is
    bound again to be held against it.
    """
    for module in (space, sys.modules[tune.__module__]):
        monkeypatch.setattr(module, "beside_kernels", lambda device: True)
    pools, started = [], []

    def kept(**given):
        pools.append(SearchWorkers(**{**given, "kept": True}))
        return pools[-1]

    module = sys.modules[tune.__module__]
    monkeypatch.setattr(module, "SearchWorkers", kept)
    # nor does anybody who judges a large workload wait for himself, or lack the error of what he keeps
    monkeypatch.setattr(job.Job, "room", lambda self: alone_on("cpu", "-room"))
    monkeypatch.setattr(module, "Setting", lambda **given: Setting(**{**given, "measured": False}))
    (home / "twice" / "cpp_repeats.cpp").write_text(SLOW)
    (home / "twice" / "cpp_behind.cpp").write_text(
        SLOW.replace("[1, 4, 8, 12]", "[40, 44]").replace("STEPS = 8", "STEPS = 40")
    )
    definition = home / "twice" / "op.py"
    definition.write_text(definition.read_text().replace("'cpp_repeats', ", "'cpp_behind', 'cpp_repeats', "))
    host, trials = Isolated(), []
    worker = host.worker
    monkeypatch.setattr(host, "worker", lambda environment: started.append(1) or worker(environment))
    try:
        options = TuneOptions(backends=("cpp",), trials=0, plan=Plan(samples=5, budget_s=0.05), jobs=2)
        (found,) = tune(load([home]), "twice", options, host, add=lambda record: None, listener=trials.append)
    finally:
        host.close()
    assert sorted((trial.implementation, trial.config.as_dict()["STEPS"]) for trial in trials) == [
        *(("cpp_behind", steps) for steps in (40, 44)),
        *(("cpp_repeats", steps) for steps in (1, 4, 8, 12)),
    ]
    assert found.failed == 0 and found.kept
    assert found.record.implementation == "cpp_repeats" and found.record.config.as_dict()["STEPS"] == 1
    assert found.over_default is not None and found.over_default < 0.5
    ((name, _, ratio),) = found.others
    assert name == "cpp_behind" and ratio > 2
    assert len(found.record.verdict.checked) > 1 and all(item.metrics for item in found.record.verdict.checked)
    # one for each point, each verification and each that is bound again would be fourteen
    assert len(started) < 12
    assert not pools[0].spare and not pools[0].coming


def test_after_the_limit_no_default_is_begun():
    """A search always tries its first point: with --limit 60 each of the other implementations took its turn still."""
    spaces = {name: SimpleNamespace(search=SimpleNamespace(given=given)) for name, given in (("tried", 1), ("new", 0))}
    late, early = SimpleNamespace(until=time.monotonic() - 1), SimpleNamespace(until=time.monotonic() + 60)
    assert in_time(late, ["tried", "new"], spaces) == ["tried"]
    assert in_time(early, ["tried", "new"], spaces) == ["tried", "new"]


def test_cases_that_take_a_second_each_to_compile_wait_for_the_final_where_there_is_a_limit():
    """`tune --limit 60` took 100 s: on a CPU TileLang compiled every case of every point."""

    def late(backend, limit_s, kept=False):
        setting = SimpleNamespace(pool=SimpleNamespace(kept=kept))
        job = SimpleNamespace(setting=setting, options=SimpleNamespace(limit_s=limit_s), careful=False)
        return _late(job, SimpleNamespace(backend=backend))

    assert late("tilelang", 60.0) and late("tilelang", None, kept=True)
    assert not late("tilelang", None) and not late("cpp", 60.0)
