"""A search that is killed goes on where it was: no measured point is repeated or lost. And a search among bad points
ends with the best of the rest and its count. The kernels are C++, compiled here.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from opforge.backends.cpp import host_compiler
from opforge.core.definition.implementation import Config
from opforge.core.evidence.record import to_json
from opforge.core.evidence.verdict import Pass
from opforge.machine import detect
from opforge.registry import load
from opforge.runner import Isolated
from opforge.store import Store
from opforge.timing import Plan
from opforge.tuning import TuneOptions, codes, tune
from opforge.tuning.device_lock import alone_on, lock_file
from opforge.tuning.journal import FATAL, Entry, Journal
from opforge.tuning.strategies import Failure, Measured
from simulated import make_home, record

KERNEL = """// y = 2x, a little slower with every step.
/* opforge
space = {STEPS = STEPS_TAKEN, FLAVOUR = [0, 1]}
default = {STEPS = 9, FLAVOUR = 0}
[limits]
LIMIT
*/
#include <chrono>
#include <cstdlib>
#include <thread>
#include "opforge/host.h"
static_assert(!(REFUSED), "this point is not for building");
namespace {
void twice(opforge::TensorView x, opforge::TensorView y) {
  if (CRASHES) std::abort();
  std::this_thread::sleep_for(std::chrono::microseconds(2000 * STEPS + 500 * FLAVOUR));
  const float* in = static_cast<const float*>(x.data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) static_cast<float*>(y.data_ptr())[i] = in[i] * (WRONG ? 3.0f : 2.0f);
}
}  // namespace
OPFORGE_EXPORT(run, twice)
"""


def make(tmp_path, steps=range(1, 10), refused="0", crashes="0", wrong="0", limit='none = "STEPS > 0"'):
    """A home with `twice`, of whose points some are refused by the compiler, crash or compute something else."""
    folder = make_home(tmp_path) / "twice"
    text = KERNEL.replace("STEPS_TAKEN", str(list(steps))).replace("REFUSED", refused).replace("LIMIT", limit)
    (folder / "cpp_steps.cpp").write_text(text.replace("CRASHES", crashes).replace("WRONG", wrong))
    definition = (folder / "op.py").read_text()
    (folder / "op.py").write_text(
        definition.replace("'torch_eager', 'torch_slow', 'torch_wrong'", "'cpp_steps', 'torch_eager'")
    )
    return folder.parent


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """Journals of this test alone."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "opforge" / "tuning"


def search(home, stop=lambda: False, **options):
    """The outcome of tuning `twice`, the trials and the records."""
    records, trials, host = [], [], Isolated()
    try:
        (outcome,) = tune(
            load([home]),
            "twice",
            TuneOptions(
                implementations=("cpp_steps",),
                **{"trials": 0, "plan": Plan(samples=3, budget_s=0.02), "hang_s": 5.0, **options},
            ),
            host,
            add=records.append,
            listener=trials.append,
            stop=(lambda: stop(trials)) if stop.__code__.co_argcount else stop,
        )
    finally:
        host.close()
    return outcome, trials, records


@pytest.mark.campaign
def test_a_search_that_was_stopped_goes_on_and_its_journal_ends_with_it(tmp_path, data):
    """What was measured counts, is told to the strategy and is on record; nothing of it is measured again."""
    home = make(tmp_path, steps=(1, 9))
    first, before, recorded = search(home, stop=lambda trials: len(trials) >= 2)
    assert first.kept and len(before) == 2 and len(list(data.iterdir())) == 1
    second, after, again = search(home)
    assert second.resumed == 2 and len(after) == 2
    assert not {trial.config for trial in before} & {trial.config for trial in after}
    # the records of the first run are handed over once more, in case that the store never had them
    assert {trial.record.id for trial in before} <= {item.id for item in again}
    assert second.timed + second.slower + second.same_code + second.failed == 4
    assert second.record.config.as_dict()["STEPS"] == 1 and second.over_default < 1
    assert not list(data.iterdir()), "the next search begins afresh"
    assert {trial.record.id for trial in before} <= {item.id for item in recorded}


RECORD = record()


def entry(**values):
    return Entry(
        config=Config(tuple(values.items())),
        outcome="timed",
        taught=Measured(seconds=2e-3),
        record=RECORD,
        code_sha256="ab",
    )


def entries(file):
    journal = Journal(file)
    journal.close()
    return journal.entries


def test_a_line_that_was_cut_short_is_passed_over_and_what_follows_can_be_read(tmp_path):
    """The end of the machine comes in the middle of a write; the next run appends where the last whole line ends."""
    file = tmp_path / "search.jsonl"
    journal = Journal(file)
    journal.begin(entry(A=1).config)
    journal.end(entry(A=1))
    journal.close()
    whole = file.read_bytes()
    for cut in (1, len(whole) // 3, len(whole) - 1):
        file.write_bytes(whole + whole[:cut])
        journal = Journal(file)
        assert journal.entries == [entry(A=1)]
        journal.end(replace(entry(A=2), taught=Failure(stage="wrong"), record=None))
        journal.close()
        assert [item.config.as_dict() for item in entries(file)] == [{"A": 1}, {"A": 2}]


def test_a_point_that_ends_the_search_comes_last_and_after_three_times_no_more(tmp_path):
    """One crashing config must not poison the rest; a signal that hit somebody by chance must not lose a point."""
    file = tmp_path / "search.jsonl"
    for _ in range(FATAL - 1):
        journal = Journal(file)
        journal.begin(entry(A=7).config)
        journal.close()
    journal = Journal(file)
    assert journal.unended == [entry(A=7).config] and not journal.entries
    journal.begin(entry(A=7).config)
    journal.close()
    (given_up,) = entries(file)
    assert given_up.outcome == "failed" and "3 times" in given_up.taught.reason and given_up.record is None


def test_two_searches_of_the_same_do_not_share_a_journal(tmp_path):
    """One on each GPU of a model: the second has none, and disturbs nothing."""
    file = tmp_path / "search.jsonl"
    first, second = Journal(file), Journal(file)
    second.end(entry(A=1))
    first.end(entry(A=2))
    second.close()
    first.close()
    assert [item.config.as_dict() for item in entries(file)] == [{"A": 2}]


def test_one_measurement_at_a_time_on_a_device():
    """Another process that holds the device is waited for; another device is not."""
    code = (
        "import sys\nfrom opforge.tuning.device_lock import alone_on\n"
        "with alone_on('cpu'):\n    print('held', flush=True)\n    sys.stdin.read()"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "held\n"
    began = time.monotonic()
    with alone_on("cuda"):
        assert lock_file("cuda") != lock_file("cpu")
    killer = threading.Timer(0.3, other.kill)
    killer.start()
    with alone_on("cpu"):
        assert time.monotonic() - began >= 0.3
    other.communicate()


@pytest.mark.campaign
def test_a_compiler_that_crashes_at_every_third_point_costs_those_points_their_head_start(tmp_path, monkeypatch):
    """The process that compiles ahead dies: nothing is known of the point, which is bound all the same, and the search
    ends with its best.
    """
    groups = []
    compiled = codes.Codes._compile

    def compiling(self, group):
        groups.append(group)
        if len(groups) % 3 == 0:
            raise subprocess.SubprocessError("the compiler was killed by signal 11")
        compiled(self, group)

    monkeypatch.setattr(codes.Codes, "_compile", compiling)
    outcome, trials, _ = search(make(tmp_path, steps=(1, 5, 9)))
    assert len(groups) == 6 and len(trials) == 6
    assert outcome.record.config.as_dict()["STEPS"] == 1, [(str(item.config), item.reason) for item in trials]
    assert isinstance(outcome.record.verdict, Pass)
    assert outcome.timed + outcome.slower + outcome.failed + outcome.same_code == 6


@pytest.mark.campaign
def test_points_at_which_the_compiler_dies_are_counted_and_the_best_of_the_rest_is_kept(tmp_path, monkeypatch):
    """The compiler itself, by a signal, at every third point and whenever it is asked: among them the fastest."""
    folder = tmp_path / "bin"
    folder.mkdir()
    name = host_compiler()
    killed = 'case " $* " in *" -DSTEPS=1 "*) kill -SEGV $$;; esac'
    (folder / name).write_text(f'#!/bin/sh\n{killed}\nexec {shutil.which(name)} "$@"\n')
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("OPFORGE_CACHE", str(tmp_path / "cache"))
    outcome, trials, _ = search(make(tmp_path, steps=(1, 2, 9)))
    failed = [trial for trial in trials if trial.outcome == "failed"]
    assert {trial.config.as_dict()["STEPS"] for trial in failed} == {1} and outcome.failed == 2 and len(trials) == 6
    assert all(trial.reason for trial in failed)
    assert outcome.record.config.as_dict()["STEPS"] == 2


@pytest.mark.campaign
def test_points_that_the_compiler_refuses_are_counted_and_the_best_of_the_rest_is_kept(tmp_path):
    """Every third point does not build, among them the fastest."""
    outcome, trials, _ = search(make(tmp_path, steps=(1, 2, 3, 4, 9), refused="STEPS % 3 == 1"))
    failed = {trial.config.as_dict()["STEPS"] for trial in trials if trial.outcome == "failed"}
    assert failed == {1, 4} and outcome.failed == 4 and len(trials) == 10
    assert outcome.record.config.as_dict()["STEPS"] == 2


@pytest.mark.campaign
def test_a_constraint_that_lies_costs_the_points_that_it_let_through(tmp_path):
    """It allows points that crash and points that are wrong, and has no value where FLAVOUR is 1."""
    home = make(
        tmp_path,
        steps=(1, 2, 3, 9),
        crashes="STEPS == 1",
        wrong="STEPS == 2",
        limit='lies = "STEPS % (1 - FLAVOUR) == 0"',
    )
    outcome, trials, _ = search(home)
    assert {
        trial.config.as_dict()["STEPS"]: trial.reason.split(":")[0] for trial in trials if trial.outcome == "failed"
    } == {
        1: "Crash",
        2: "Mismatch",
    }
    assert outcome.failed == 2 and outcome.refused == 4
    assert outcome.record.config.as_dict()["STEPS"] == 3


@pytest.mark.campaign
def test_a_space_without_a_legal_point_ends_with_its_default_or_with_none(tmp_path):
    """The default is what a call without tuning gets: it is tried where every limit speaks against it. Where it fails
    too there is no choice, and the count says so.
    """
    nothing = 'nothing = "STEPS < 0"'
    outcome, trials, _ = search(make(tmp_path / "a", limit=nothing))
    assert len(trials) == 1 and outcome.refused == 17 and outcome.record.config.as_dict()["STEPS"] == 9
    outcome, _, _ = search(make(tmp_path / "b", limit=nothing, crashes="1"))
    assert outcome.record is None and (outcome.failed, outcome.refused) == (1, 17) and "no point passed" in outcome.why


@pytest.mark.parametrize(
    ("wanted", "steps"),
    [pytest.param(5, 9, marks=pytest.mark.campaign), pytest.param(20, 25, marks=pytest.mark.slow)],
)
def test_a_search_killed_at_random_moments_repeats_no_point_and_loses_none(tmp_path, data, wanted, steps):
    """SIGKILL to the whole process group, whatever it was doing: compiling, measuring, writing. Each point is on record
    once when it is done.
    """
    home, points = make(tmp_path, steps=range(1, steps + 1)), 2 * steps
    environment = {
        **os.environ,
        "OPFORGE_STORE": str(tmp_path / "records.sqlite"),
        "OPFORGE_CACHE": str(tmp_path / "cache"),
    }
    words = ["--home", str(home), "tune", "twice", "-i", "cpp_steps", "--device", "cpu", "--trials", "0"]
    command = [sys.executable, "-m", "opforge", *words, "--budget", "0.05", "--json"]
    draw, kills = random.Random(11), 0
    while kills < wanted:
        lines = sum(file.read_bytes().count(b"\n") for file in data.glob("*")) + draw.randrange(5)
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        # some points farther, and then at any moment: how long a start takes depends on the machine
        while process.poll() is None and sum(file.read_bytes().count(b"\n") for file in data.glob("*")) < lines:
            time.sleep(0.01)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=draw.uniform(0, 1.0))
            break  # it came to its end before the kill
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    (outcome,) = json.loads(done.stdout)["tuned"]
    with Store.open(f"sqlite:///{tmp_path / 'records.sqlite'}") as store:
        tried = [item.config for item in store.query(operator="twice") if item.trial]
    assert len(tried) == len(set(tried)) == points, (
        f"{len(tried)} trials of {len(set(tried))} points after {kills} kills"
    )
    assert outcome["resumed"] > 0 and kills == wanted
    assert sum(outcome[name] for name in ("timed", "slower", "same_code", "failed")) == points
    assert outcome["config"]["STEPS"] == 1
    assert not list(data.iterdir())


@pytest.mark.campaign
def test_a_chip_of_ones_own_bounds_the_points_of_a_search(tmp_path):
    """`tune --device my_chip.json`: measured on a device of its kind, among what both could run; nothing is kept."""
    home = make(tmp_path, steps=(1, 2, 3, 9), limit='few = "STEPS <= units or STEPS == 9 and vector_bytes > 8"')
    described = to_json(replace(detect("cpu"), name="my-chip", units=2, vector_bytes=16, ceilings=(), matches=()))
    (tmp_path / "my_chip.json").write_text(json.dumps(described))
    words = ["--home", str(home), "tune", "twice", "-i", "cpp_steps", "--device", str(tmp_path / "my_chip.json")]
    words += ["--budget", "0.05", "--config", "FLAVOUR=0", "--json"]
    done = subprocess.run([sys.executable, "-m", "opforge", *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert {trial["config"]["STEPS"] for trial in said["trials"]} == {1, 2, 9}
    assert said["tuned"][0]["config"]["STEPS"] == 1 and not (home / "twice" / "tuned").exists()


@pytest.mark.campaign
def test_after_an_upgrade_the_winner_and_the_runners_up_are_tried_alone(tmp_path):
    """Nothing is searched, and what moved is said: the winner of before became wrong, the next one is kept."""
    home = make(tmp_path, steps=(1, 5, 9))
    nothing, trials, _ = requalified(home, [])
    assert nothing is None and not trials
    first, _, records = search(home)
    assert first.record.config.as_dict()["STEPS"] == 1
    again, trials, _ = requalified(home, records)
    # the two points of STEPS=1 differ by less than a busy machine adds: either may win
    assert again.record.config.as_dict()["STEPS"] == 1 and "cpp_steps [STEPS=1" in again.why
    assert again.timed <= 5 and again.over_default < 1
    make_wrong = (home / "twice" / "cpp_steps.cpp").read_text().replace("(0 ? 3.0f", "(STEPS == 1 ? 3.0f")
    (home / "twice" / "cpp_steps.cpp").write_text(make_wrong)
    moved, _, _ = requalified(home, records)
    # who had a time on record was near the best then; the default is always among them
    assert moved.record.config.as_dict()["STEPS"] > 1 and moved.failed >= 1
    assert moved.why.startswith("was cpp_steps [STEPS=1")


def requalified(home, earlier):
    records, trials, host = [], [], Isolated()
    try:
        outcomes = list(
            tune(
                load([home]),
                "twice",
                TuneOptions(implementations=("cpp_steps",), plan=Plan(samples=3, budget_s=0.02), requalify=True),
                host,
                add=records.append,
                listener=trials.append,
                earlier=earlier,
            )
        )
    finally:
        host.close()
    return (outcomes[0] if outcomes else None), trials, records
