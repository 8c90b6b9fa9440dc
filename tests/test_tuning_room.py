"""Several searches on one device: want of room is nobody's verdict, and workers are kept for the next point."""

from types import SimpleNamespace
from typing import Any

import pytest

from opforge.core.definition.implementation import Config
from opforge.core.evidence.timing import Untimed
from opforge.core.evidence.verdict import Broken
from opforge.core.language.errors import NotNow
from opforge.registry import load
from opforge.runner import Isolated
from opforge.runner.wire.messages import Failed, Spare
from opforge.runner.worker.device_clocks import NO_GRAPH
from opforge.timing import Plan
from opforge.trial import Setting
from opforge.tuning import TuneOptions, job, room, tune
from opforge.tuning.journal import FATAL, Journal
from opforge.tuning.room import AGAIN, NoRoom, patiently, shortage
from opforge.tuning.search import Search
from opforge.tuning.workers import MOST, SearchWorkers
from simulated import make_home
from test_worker_pool import Hand, implementation


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    """Journals of this test alone, and no pauses."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(room, "PAUSES_S", (0.0,))


def asked(answers, **options):
    """What `patiently` makes of answers, or of what is raised in their place, and how often room was made."""
    left, made = iter(answers), []

    def ask() -> Any:
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer

    lacking = {"lacking": lambda answer: answer if answer == "short" else None, "end": lambda: False}
    return patiently(ask, relief=lambda: made.append(1), **{**lacking, **options}), len(made)


def test_what_finds_no_room_is_asked_again_and_what_is_wrong_is_not():
    """A search beside others told the strategy of failures that were its neighbours' memory."""
    assert asked([NotNow("full"), "short", RuntimeError("CUDA error: out of memory"), "right"]) == ("right", 3)
    with pytest.raises(RuntimeError, match="misaligned"):
        asked([RuntimeError("CUDA error: misaligned address")])
    with pytest.raises(NoRoom, match="full"):
        asked([NotNow("full")], end=lambda: True)
    with pytest.raises(NoRoom, match="short"):
        asked(["short"] * 3, patience_s=-1.0)


def test_room_is_made_of_what_points_that_live_on_keep_for_the_next_sample():
    """The best point, of 114 GiB, was not kept: the search's own graph of it left no room to judge it in."""
    asked = []

    def point(launch, parked):
        candidate = SimpleNamespace(launch=launch, ask=asked.append)
        return SimpleNamespace(parked=parked, candidate=lambda: candidate)

    pool = SimpleNamespace()
    one = SimpleNamespace(
        finalists=[point(3, False), point(4, True)],
        setting=SimpleNamespace(pool=pool, prepared=SimpleNamespace(place=SimpleNamespace(type="cpu"))),
    )
    job.Job.make_room(one)
    assert asked == [Spare(launch=3)]


def test_memory_that_a_kernel_asks_for_is_its_own_fault_on_an_empty_device(monkeypatch):
    """Else a point that can never run would be waited for. A neighbour's may have been given back since it failed."""
    broken = Broken(case=None, dtype="float32", reason="out of memory: the kernel asks for more", isolation="")
    for taken in (True, False):
        monkeypatch.setattr(room, "crowded", lambda device, taken=taken: taken)
        short = shortage("cuda")
        assert [short(broken) for _ in range(AGAIN + 2)] == [True] * AGAIN + [taken] * 2
    monkeypatch.setattr(room, "crowded", lambda device: True)
    assert not shortage("cpu")(broken)
    assert not shortage("cuda")(Broken(case=None, dtype="float32", reason="an exception", isolation=""))


def searched(home, monkeypatch, refusals):
    """The outcome of tuning PyTorch's `twice` where the first binds find no room, and the trials."""
    left, bind = iter(range(refusals)), job.bind

    def crowded(setting, points):
        if next(left, None) is not None:
            raise NotNow("the device has no room for 64 bytes beside what others hold")
        return bind(setting, points)

    monkeypatch.setattr(job, "bind", crowded)
    trials: list = []
    options = TuneOptions(implementations=("torch_eager",), plan=Plan(samples=5, budget_s=0.02), limit_s=60.0)
    with Isolated() as host:
        (found,) = tune(load([home]), "twice", options, host, add=lambda record: None, listener=trials.append)
    return found, trials


def test_a_point_that_finds_room_later_is_no_failure(tmp_path, monkeypatch):
    """A softmax was given to PyTorch because every kernel of ours "had failed" while others held the memory."""
    found, trials = searched(make_home(tmp_path), monkeypatch, 3)
    assert found.kept and found.failed == 0 and [trial.outcome for trial in trials] == ["timed"]


def test_who_can_be_put_into_no_graph_is_timed_by_events_and_so_are_those_beside(tmp_path, monkeypatch):
    """PyTorch's attention over packed sequences reads lengths on the host: choices were kept without its time."""
    timed, clocks = Setting.timed, []

    def graphs(setting, candidates, plan, timer=""):
        clocks.append((timer, len(candidates)))
        assert not any(candidate.samples for candidate in candidates)
        found = timed(setting, candidates, plan, "host")
        if timer == "cuda_event":
            return found
        return [
            Untimed(reason=f"{NO_GRAPH}: it waits") if "torch_eager" in candidate.name else timing
            for candidate, timing in zip(candidates, found, strict=True)
        ]

    monkeypatch.setattr(Setting, "timed", graphs)
    found, trials = searched(make_home(tmp_path), monkeypatch, 0)
    assert found.kept and found.failed == 0 and [trial.outcome for trial in trials] == ["timed"]
    assert clocks[0] == ("", 1) and ("cuda_event", 1) in clocks


def test_nothing_is_chosen_where_a_default_never_found_room(tmp_path, monkeypatch):
    """Nobody knows whether it is better; neither is it told to anybody as a failure."""
    monkeypatch.setattr(job, "patiently", lambda *asked, **options: patiently(*asked, **{**options, "patience_s": 0.1}))
    found, trials = searched(make_home(tmp_path), monkeypatch, 10**9)
    assert not found.kept and found.failed == 0 and not trials
    assert "no room" in found.why and "not kept" in found.why and "Run it again" in found.why


def test_a_point_that_was_taken_back_comes_next_and_counts_as_never_begun(tmp_path):
    """It must not be given up after three times that it found no room."""
    points = [Config((("A", value),)) for value in range(4)]
    search = Search(points, 3)
    first = search.next()
    search.take_back(first)
    assert search.given == 0 and search.next() == first
    for _ in range(FATAL + 1):
        journal = Journal(tmp_path / "search.jsonl")
        journal.begin(points[1])
        journal.take_back(points[1])
        journal.close()
    journal = Journal(tmp_path / "search.jsonl")
    assert not journal.entries and not journal.unended


def test_workers_of_a_search_are_kept_and_started_ahead():
    """Each point cost a process and a device's context, which is longer than most take to be measured."""
    made: list[Hand] = []

    def worker(environment: object) -> Hand:
        made.append(Hand())
        return made[-1]

    item = implementation("cpp_a")
    pool = SearchWorkers(host=SimpleNamespace(worker=worker), device="cpu")
    pool.start([item])
    first = pool.take(item)
    assert made == [first] and [question.do for question in first.asked] == ["context"]
    others = [pool.take(item) for _ in range(MOST)]
    for hand in (first, *others):
        pool.leave(item, hand, whole=True, launches=(1, 2))
    assert [(question.launch, question.mapped) for question in first.asked[1:]] == [(2, True), (1, True)]
    assert [hand.closed for hand in (first, *others)] == [False] * MOST + [True]
    pool.leave(item, pool.take(item), whole=False)
    assert sum(hand.closed for hand in made) == 2, "after a wrong answer it is not to be trusted with the next"
    pool.close()
    assert all(hand.closed for hand in made)


def test_a_worker_without_a_context_is_not_handed_out(monkeypatch):
    """Whoever asks afterwards gets a new one, and is told himself what is wrong."""
    made: list[Hand] = []

    def worker(environment: object) -> Hand:
        made.append(Hand())
        return made[-1]

    monkeypatch.setattr(Hand, "request", lambda self, question, fds=(), limit_s=0.0: Failed(reason="no room"))
    item = implementation("cpp_a")
    pool = SearchWorkers(host=SimpleNamespace(worker=worker), device="cpu")
    pool.start([item])
    assert pool.take(item) is not made[0] and made[0].closed
