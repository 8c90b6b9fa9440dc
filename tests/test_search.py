"""How points are chosen: every strategy hands out each legal point at most once, learns from what it is told, and finds
a good one sooner than chance does. Times are made up; nothing is compiled.
"""

import itertools
import random
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from opforge.core.definition.implementation import Config, Implementation
from opforge.core.evidence.timing import Moment, Timing
from opforge.core.evidence.verdict import Unsupported
from opforge.core.language.errors import UsageError
from opforge.machine import device_named
from opforge.registry import load
from opforge.tuning.code_prior import CodePrior, CodeUse, cannot_launch
from opforge.tuning.final import Standing, greedy, surely_faster, ties_kept
from opforge.tuning.modelled import modelled_spaces
from opforge.tuning.replay import measured_spaces, replay, trace_of
from opforge.tuning.search import Search, valid_points
from opforge.tuning.space import with_these_settings
from opforge.tuning.strategies import (
    NAMES,
    Failure,
    Legal,
    Measured,
    ModelBased,
    Trace,
    pareto_front,
    strategy,
    weighted_scores,
)
from opforge.tuning.strategies.gaussian import GaussianProcess, expected_improvement
from opforge.tuning.strategies.prior import performance
from opforge.tuning.weighing import costs, over, parse_weights


def points(**space):
    source = Implementation(name="x", operator="x", backend="cpp", source=None, idea="", space=space)
    return list(source.configs())


GRID = points(BLOCK_M=(16, 32, 64, 128), BLOCK_N=(16, 32, 64, 128), WARPS=(1, 2, 4), MODE=("a", "b"))


def seconds_of(config):
    """Fastest at 64 × 32 with 4 warps in mode b; 128 × 128 fails."""
    named = config.as_dict()
    if named["BLOCK_M"] == named["BLOCK_N"] == 128:
        return None
    off = abs(np.log2(named["BLOCK_M"] / 64)) + abs(np.log2(named["BLOCK_N"] / 32)) + abs(np.log2(named["WARPS"] / 4))
    return (1 + 0.2 * off) * (1.3 if named["MODE"] == "a" else 1.0)


def outcome(config):
    seconds = seconds_of(config)
    return Failure(stage="launch") if seconds is None else Measured(seconds=seconds)


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_hands_out_every_legal_point_once(name):
    """A point tried twice is paid for twice, and the best may be the last that is left. Failures are no end."""
    search = strategy(name, Legal(GRID), 3, trials=24)
    asked = []
    while configs := search.ask(5):
        for config in configs:
            asked.append(config)
            search.tell(config, outcome(config))
    assert len(asked) == len(GRID) and set(asked) == set(GRID)
    assert search.best.as_dict() == {"BLOCK_M": 64, "BLOCK_N": 32, "WARPS": 4, "MODE": "b"}


@pytest.mark.parametrize("name", NAMES)
def test_a_space_in_which_nothing_passes_is_walked_to_its_end(name):
    """No time is no ground for a model, and no reason to stop."""
    search = strategy(name, Legal(GRID[:20]), 3)
    count = 0
    while configs := search.ask(3):
        count += len(configs)
        for config in configs:
            search.tell(config, Failure(stage="compile"))
    assert count == 20 and search.best is None


def test_the_model_needs_fewer_points_than_chance():
    """On a made-up space of a thousand points, twenty of which say little, the median of five searches: within 5 % of
    the optimum where a random search is not.
    """
    space = modelled_spaces()[0]
    needed = {
        name: np.median(
            [replay(space, strategy(name, space.legal, seed), 60).evaluations_to(0.95) for seed in range(3)]
        )
        for name in ("model", "random")
    }
    assert needed["model"] <= 30 < needed["random"]


def test_what_another_device_found_is_where_a_search_begins_and_not_where_it_ends():
    """The best point of the other device is not the best here, and the search leaves it."""
    here, there = modelled_spaces()
    trace = trace_of(there, replay(there, strategy("model", there.legal, 1), 60).asked)
    warm = [replay(here, strategy("model", here.legal, seed, traces=(trace,)), 40) for seed in range(3)]
    cold = [replay(here, strategy("model", here.legal, seed), 40) for seed in range(3)]
    assert np.mean([run.fractions[9] for run in warm]) > np.mean([run.fractions[9] for run in cold])
    other = here.seconds[there.seconds.argmin()]
    assert np.mean([run.fractions[-1] for run in warm]) > here.best_s / other


def test_a_prior_that_lies_is_left():
    """A trace that praises the worst points costs some trials, and not the search."""
    legal = Legal(GRID)
    lies = Trace(
        origin="nowhere",
        outcomes=[(config, Measured(seconds=1 / seconds)) for config in GRID if (seconds := seconds_of(config))],
    )
    search = ModelBased(legal, 1, (lies,))
    for _ in range(40):
        for config in search.ask(1):
            search.tell(config, outcome(config))
    assert seconds_of(search.best) <= 1.2


def test_a_trace_of_another_space_is_no_prior():
    """Points that are not legal here say nothing; a single winner says where it was good."""
    foreign = Trace(origin="elsewhere", outcomes=[(Config((("A", 1),)), Measured(seconds=1.0))])
    search = ModelBased(Legal(GRID), 1, (foreign,))
    assert search.ask(1) and search.expected is None
    winner = Trace(origin="elsewhere", outcomes=[(GRID[17], Measured(seconds=1.0))])
    assert ModelBased(Legal(GRID), 1, (winner,)).ask(1) == [GRID[17]]


def test_what_is_under_way_is_not_asked_for_twice():
    """Compilers in parallel want several points before the first of them is measured."""
    search = ModelBased(Legal(GRID), 5)
    for config in search.ask(10):
        search.tell(config, outcome(config))
    together = search.ask(6)
    assert len(set(together)) == 6


def test_a_process_says_what_it_knows_and_how_little_elsewhere():
    """At known points the mean is the value and the deviation small; far away the deviation is the whole."""
    draw = np.random.default_rng(1)
    where = draw.random((30, 2)).astype(np.float32)
    values = np.sin(4 * where[:, 0]) + 0.1 * where[:, 1]
    model = GaussianProcess(2)
    model.learn(where, values, steps=30)
    assert model.scales[1] > model.scales[0], "what matters less has the longer scale"
    model.condition(where, values)
    mean, deviation = model.predict(where)
    assert np.abs(mean - values).max() < 0.02 and deviation.max() < 0.1
    _, far = model.predict(np.full((1, 2), 50, dtype=np.float32))
    assert far[0] == pytest.approx(np.sqrt(model.variance), rel=0.01)


def test_expected_improvement_is_that_of_the_normal_distribution():
    """Against a million draws; an acquisition with a wrong sign searches the slow end."""
    draw = np.random.default_rng(2).normal(0.3, 0.5, 1_000_000)
    exact = np.maximum(0.1 - draw, 0).mean()
    (gain,) = expected_improvement(np.array([0.3]), np.array([0.5]), 0.1)
    assert gain == pytest.approx(exact, rel=0.01)


def test_failures_count_as_the_slowest_that_passed():
    assert performance(np.array([2.0, 1.0, np.inf])).tolist() == [-0.5, -1.0, -0.5]
    assert performance(np.array([np.inf])).tolist() == [0.0]


def test_features_are_ratios_and_the_product_of_a_tile():
    """BLOCK_M × BLOCK_N is a feature of its own, a word gets a column for each value, a constant gets none."""
    legal = Legal(points(BLOCK_M=(1, 2, 4), BLOCK_N=(1, 4), MODE=("a", "b"), FIXED=(3,)))
    assert legal.features.shape == (12, 2 + 2 + 1)
    assert legal.features[:, 0].tolist() == pytest.approx([0.0] * 4 + [0.5] * 4 + [1.0] * 4)
    assert legal.features[-1, -1] == 1.0 and legal.features[0, -1] == 0.0


def test_the_default_comes_first_and_no_point_comes_twice():
    """Every ratio leads back to the default, and a point tried twice would count for two."""
    tried = list(Search(GRID, 0, 1).walk())
    assert tried[0] == GRID[0] and sorted(map(str, tried)) == sorted(map(str, GRID))


def test_a_sample_looks_around_the_default_first():
    """It was chosen by someone who measured: of the first points half differ from it in one parameter."""
    grid = points(A=tuple(range(8)), B=tuple(range(8)), C=tuple(range(8)))
    search = Search(grid, 24, 3)
    changes = [sum(value != 0 for _, value in search.next().values) for _ in range(8)]
    assert changes[0] == 0 and changes.count(1) >= 3 and max(changes) > 1


def test_every_second_point_after_the_sample_is_a_neighbour_of_the_best():
    """A model may be wrong about the whole space; one step from the best is seldom wrong."""
    search = Search(GRID, 40, 3)
    steps = []
    for _ in range(24):
        best = search.strategy.best
        config = search.next()
        if search.given > 9 and best is not None:
            steps.append(sum(config.as_dict()[name] != value for name, value in best.values))
        search.tell(config, outcome(config))
    assert steps.count(1) >= len(steps) // 2


def test_who_is_compiled_comes_before_who_is_waited_for():
    """Nobody waits for a compiler while another point could be measured; the default comes first all the same."""
    search = Search(GRID, 10, 3)
    waiting = search.ahead(5)
    assert search.next(lambda config: config == waiting[3]) == waiting[0]
    assert search.next(lambda config: config == waiting[3]) == waiting[3]
    assert search.next(lambda config: False) == waiting[1]


def test_what_was_measured_before_counts_and_is_not_handed_out_again():
    """A search that goes on has fewer trials left, and what ended the last run comes at the end."""
    search = Search(GRID, 12, 3)
    for config in GRID[:5]:
        search.recall(config, outcome(config))
    search.defer(GRID[40])
    tried = list(search.walk())
    assert len(tried) == 7 and not set(tried) & set(GRID[:5])
    assert tried[-1] == GRID[40]


def test_a_limit_that_cannot_be_evaluated_refuses_the_point():
    """A division by zero at one point of a space must not end the search of the others; the count says how many."""
    source = Implementation(
        name="x",
        operator="x",
        backend="cpp",
        source=None,
        idea="",
        space={"A": (0, 1, 2), "B": (1, 2)},
        limits={"lies": "B % A == 0"},
        default=Config((("A", 1), ("B", 1))),
    )
    legal, refused = valid_points(source, {"n": 1}, "float32", 4, {})
    assert {config.as_dict()["A"] for config in legal} == {1, 2} and sum(refused.values()) == 6 - len(legal) == 3


def test_no_other_point_beats_one_of_the_front():
    """By comparing all with all, on costs with ties, gaps and NaN."""
    draw = random.Random(4)
    costs = [{"time": draw.randrange(5), "memory": draw.randrange(5)} for _ in range(40)] + [
        {"time": 0},
        {"time": float("nan")},
    ]
    front = pareto_front(costs)
    best = {cost["memory"]: cost["time"] for cost in costs if cost["time"] == 0 and "memory" in cost}
    for place in front:
        mine = costs[place]
        assert not any(
            other.get("time", 9) <= mine["time"]
            and other.get("memory", 9) <= mine.get("memory", 9)
            and (other["time"], other.get("memory", 9)) != (mine["time"], mine.get("memory", 9))
            for other in costs
        )
    assert len(costs) - 1 not in front and (not best or len(costs) - 2 not in front)


def test_a_weighted_score_does_not_depend_on_units():
    """1 / seconds and 1 / bytes cannot be added: the score is relative to the least of each."""
    costs = [{"time": 1e-3, "memory": 4e6}, {"time": 2e-3, "memory": 1e6}]
    scores = weighted_scores(costs, {"time": 0.6, "memory": 0.4})
    assert scores == pytest.approx([0.6 + 0.4 / 4, 0.6 / 2 + 0.4])
    assert weighted_scores(
        [{key: 1e6 * value for key, value in cost.items()} for cost in costs], {"time": 0.6, "memory": 0.4}
    ) == pytest.approx(scores)
    with pytest.raises(ValueError, match="above 0"):
        weighted_scores(costs, {"time": 0.0})


def test_a_table_is_read_and_one_without_times_is_refused(tmp_path):
    """NAME@DEVICE.csv, as projected from the auto-tuning community's measurements."""
    (tmp_path / "k@gpu.csv").write_text("a,b,status,time_median_ms\n1,x,ok,2.0\n2,x,ok,1.0\n2,y,error,\n")
    (space,) = measured_spaces(tmp_path)
    assert (space.name, len(space.legal), space.best_s) == ("k@gpu", 3, 1e-3)
    assert [type(space.outcome(config)) for config in space.legal.configs] == [Measured, Measured, Failure]
    (tmp_path / "k@gpu.csv").write_text("a,status\n1,ok\n")
    with pytest.raises(UsageError, match="time_median_ms"):
        measured_spaces(tmp_path)


def test_limits_are_those_of_the_device_that_is_meant():
    """A device with less shared memory has fewer points, one without a capability none of those that need it. What a
    descriptor doesn't know is an H200's. Where two devices are meant, points are legal on both.
    """
    small = replace(device_named("rtx4090"), name="small", shared_bytes_per_block=65536)
    unknown = replace(small, shared_bytes_per_block=0)
    source = Implementation(
        name="x",
        operator="x",
        backend="cuda",
        source=None,
        idea="",
        space={"KIB": (16, 64, 96, 227), "TMA": (False, True)},
        limits={
            "fits_shared_memory": "KIB * 1024 <= shared_bytes_per_block",
            "the_device_has_tma": "not TMA or 'tma' in capabilities",
        },
        default=Config((("KIB", 16), ("TMA", False))),
    )

    def sizes(*devices, tma=False):
        points, refused = valid_points(source, {"n": 1}, "float32", 4, {}, devices)
        assert sum(refused.values()) == 8 - len(points)
        return [point.as_dict()["KIB"] for point in points if point.as_dict()["TMA"] == tma]

    assert sizes() == sizes(device_named("h200")) == sizes(unknown) == [16, 64, 96, 227]
    assert sizes(device_named("rtx4090")) == [16, 64, 96]
    assert sizes(small) == sizes(device_named("h200"), small) == [16, 64]
    assert sizes(device_named("h200"), tma=True) == [16, 64, 96, 227]
    assert sizes(small, tma=True) == sizes(device_named("h200"), small, tma=True) == []


SMALL = 100 * 1024
"""Bytes of shared memory of a chip that nobody makes."""


@pytest.mark.parametrize(
    ("name", "bytes_of"),
    [
        ("triton_tiled", lambda p: (p["BLOCK_M"] + p["BLOCK_N"]) * p["BLOCK_K_BYTES"] * p["num_stages"]),
        (
            "cuda_mma",
            lambda p: 2 * p["STAGES"] * (p["BLOCK_M"] * (p["BLOCK_K"] + 8) + p["BLOCK_K"] * (p["BLOCK_N"] + 8)),
        ),
        (
            "tilelang_tiled",
            lambda p: (
                max((p["BLOCK_M"] + p["BLOCK_N"]) * p["BLOCK_K"] * p["num_stages"], p["BLOCK_M"] * p["BLOCK_N"]) * 2
                + 1024
            ),
        ),
    ],
)
def test_a_chip_with_100_kb_of_shared_memory_has_no_point_that_needs_more(name, bytes_of):
    """A Triton, a CUDA and a TileLang kernel: the descriptor alone says so. An H200 has such points."""
    kernel = load().implementation("matmul", name)
    h200 = device_named("h200")
    chip = replace(h200, name="my-chip", shared_bytes_per_block=SMALL)
    call = (kernel, {"m": 4096, "n": 4096, "k": 4096}, "bfloat16", 2, {"precision": "ieee"})
    there, _ = valid_points(*call, [h200])
    here, refused = valid_points(*call, [chip])
    large = [point for point in there if bytes_of(point.as_dict()) > SMALL]
    default = kernel.default
    assert large and not any(bytes_of(point.as_dict()) > SMALL for point in here if point != default)
    assert set(here) == set(there) - (set(large) - {default})
    assert any("shared_memory" in reason for reason in refused)


def test_no_kernel_says_the_shared_memory_of_one_device():
    """Limits name what the descriptor says. The bytes of a block or a unit stand in no kernel's file and in no limit;
    headers for Hopper's own instructions may say Hopper's.
    """
    registry = load()
    for operator in registry.names():
        for kernel in registry.implementations(operator):
            text = kernel.source.read_text(encoding="utf-8")
            assert not re.search(r"\b(232448|233472|166912|167936|101376|102400)\b", text), kernel.source
            for limit, expression in kernel.limits.items():
                numbers = [int(number) for number in re.findall(r"\b\d+\b", expression)]
                assert not any(160_000 < number < 240_000 for number in numbers), f"{kernel.source} {limit}"


def test_settings_of_ones_own_leave_the_points_that_have_them():
    points = [Config((("A", a), ("B", b))) for a in (1, 2, 4) for b in (1, 2)]
    assert with_these_settings(points, ()) == points
    assert with_these_settings(points, (Config((("A", 4),)),)) == [points[0], points[4], points[5]]
    two = with_these_settings(points, (Config((("A", 2), ("B", 2))), Config((("A", 4), ("B", 1)))))
    assert two == [points[0], points[3], points[4]]


def timed(*samples):
    return Timing(samples_s=samples, batch=1, timer="host", cache="warm", overhead_s=0.0, conditions=())


def test_a_tie_keeps_what_was_there():
    """0.997 of the best, within noise, is no reason to change a choice; 0.9 is. What was there without a choice is the
    default.
    """
    draw = random.Random(1)
    noise = [1 + draw.gauss(0, 0.01) for _ in range(30)]
    default = Config((("A", 1),))

    def item(value, factor):
        made = SimpleNamespace(name="cpp_x", default=default)
        samples = [factor * each * (1 + draw.gauss(0, 0.004)) for each in noise]
        finalist = SimpleNamespace(implementation=made, config=Config((("A", value),)))
        return Standing(finalist=finalist, candidate=None, timing=timed(*samples))

    def order(there, *standing):
        return [each.finalist.config.as_dict()["A"] for each in ties_kept(standing, there)]

    near, clear = [item(4, 0.997), item(1, 1.0)], [item(4, 0.9), item(1, 1.0)]
    assert order(None, *near) == order(("cpp_x", default), *near) == [1, 4]
    assert order(None, *clear) == [4, 1]
    # the former choice comes before who is a tie with it, and behind who is surely faster
    former = ("cpp_x", Config((("A", 2),)))
    assert order(former, item(4, 0.9), item(8, 0.998), item(2, 1.0), item(1, 1.3)) == [4, 2, 8, 1]
    assert order(("gone", default), *clear) == [4, 1] and order(former) == []
    assert surely_faster(timed(1.0, 1.0), timed(1.2, 1.2)) and not surely_faster(timed(1.0), timed(1.005))


def test_who_takes_most_of_a_device_is_no_choice_beside_who_takes_little():
    """By time alone a caller would have got 83 GiB of scores for a gradient whose operands are one."""

    def item(extra_bytes):
        timing = replace(timed(1.0), extra_bytes=extra_bytes)
        return Standing(finalist=None, candidate=None, timing=timing)

    large, small, unknown = item(83 << 30), item(1 << 30), item(None)
    assert greedy([large, small, unknown], 140 << 30) == [large]
    assert greedy([large, small], 400 << 30) == greedy([large], 0) == []


def test_what_a_point_costs_by_weights_is_what_it_costs_over_another():
    """Twice the memory at nine tenths of the time is dearer by 0.6 : 0.3; what one of both lacks has no say."""
    weights = {"time": 0.6, "memory": 0.3, "energy": 0.1}
    dear = {"time": 0.9, "memory": 2.0}
    assert over(dear, {"time": 1.0, "memory": 1.0, "energy": 5.0}, weights) == pytest.approx(
        0.9 / (0.6 / 0.9 + 0.3 * 0.5)
    )
    assert over(dear, {"time": 1.0}, {"memory": 1.0}) == pytest.approx(0.9)
    assert parse_weights("time=1,error=0") == {"time": 1.0, "error": 0.0} and parse_weights("") == {}
    for text in ("time", "time=-1", "speed=1", "time=0", "time=nan", ","):
        with pytest.raises(UsageError, match=r"Example: time=0\.6"):
            parse_weights(text)


def test_energy_is_power_by_time_and_memory_what_a_call_takes_in_all():
    moments = tuple(
        Moment(at_s=0.0, load=None, cpu_mhz=None, stolen=None, power_w=power) for power in (300.0, 500.0, 400.0)
    )
    found = costs(replace(timed(2.0, 2.0), moments=moments, extra_bytes=24), Unsupported(reason=""), 1000)
    assert found == {"time": 2.0, "memory": 1024, "energy": 800.0}
    assert set(costs(timed(1.0), Unsupported(reason=""), 1000)) == {"time"}


def use(**changes):
    kernel = {"registers": 32, "stack_bytes": 0, "shared_bytes": 0, "threads": 256, "blocks": 132 * 8}
    return CodeUse(**{**kernel, **changes})


def test_code_that_no_block_of_the_device_holds_is_not_launched():
    """227 KiB fit an H200 and no A100; what a descriptor does not know refuses nothing."""
    h200, a100 = device_named("h200"), device_named("a100")
    large = use(shared_bytes=227 << 10)
    assert cannot_launch(large, h200) == "" and "232448 bytes of shared memory" in cannot_launch(large, a100)
    assert "registers" in cannot_launch(use(registers=255, threads=512), h200)
    assert cannot_launch(large, replace(a100, shared_bytes_per_block=0)) == ""


def test_full_waves_come_first_and_what_matters_here_is_learnt():
    """One block more than the device holds at once is a second wave, nearly empty. Where spills cost nothing and few
    warps much, points say so.
    """
    prior = CodePrior(device_named("h200"))
    assert prior.expected(use()) < prior.expected(use(blocks=132 * 8 + 1))
    assert prior.expected(use()) < prior.expected(use(stack_bytes=64))
    for registers, stack in itertools.product((32, 64, 128), (0, 64, 0, 64)):
        blocks = 132 * 65536 // (registers * 256)
        prior.tell(use(registers=registers, stack_bytes=stack, blocks=blocks), registers / 32)
    few = use(registers=128, blocks=132 * 2)
    assert prior.expected(few) - prior.expected(use()) > 5 * 0.1 * np.log(4)  # five times what was expected
    assert abs(prior.expected(use(stack_bytes=64)) - prior.expected(use())) < 0.1


def test_of_points_that_are_compiled_the_most_promising_comes_first():
    search = Search(GRID, 8, 1, name="exhaustive")
    assert search.next() == GRID[0]
    waiting = search.ahead(4)
    assert search.next(lambda config: config != waiting[3], lambda config: -waiting.index(config)) == waiting[2]
    assert search.next() == waiting[0]
