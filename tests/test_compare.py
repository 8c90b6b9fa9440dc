"""A against B: pure verdicts on seeded pairs, and the whole comparison with real workers."""

import math
import random
from collections import Counter
from statistics import median

import pytest

from opforge.backends import Emulated
from opforge.cli.app import command_line
from opforge.core.evidence.comparison import FASTER, SAME, SLOWER, UNSURE
from opforge.core.evidence.record import to_json
from opforge.core.language.errors import UsageError
from opforge.timing import (
    Rule,
    compare,
    compare_recorded,
    compare_while_sampling,
    corrected,
    geometric_mean,
    holm,
    sentence,
)
from opforge.timing.paired_statistics import (
    bootstrap_median,
    mann_whitney,
    place,
    sign_test,
    student_p,
    student_quantile,
)
from opforge.workbench import parse_side
from opforge.workbench.sides import folder_at
from simulated import make_home, noisy


@pytest.fixture
def home(tmp_path):
    """A folder with one operator, `twice`, that has a slow and a wrong implementation."""
    return make_home(tmp_path)


def verdicts(count, slower=0.0, **noise):
    return Counter(
        compare_while_sampling("a", "b", *noisy(seed, slower, **noise), Rule(), order=random.Random(seed)).outcome
        for seed in range(count)
    )


def test_identical_code_is_never_called_faster_or_slower():
    """The whole point: rules in common use do in up to 43 % of comparisons."""
    found = verdicts(50)
    assert found[FASTER] + found[SLOWER] == 0


def test_a_slow_down_is_found_and_never_called_faster():
    """5 % on a quiet machine, and nothing but SLOWER or UNSURE."""
    found = verdicts(25, slower=0.05)
    assert found[SLOWER] >= 23
    assert found[FASTER] == 0


def test_sides_change_places():
    """What is SLOWER one way is FASTER the other way, by the inverse ratio."""
    slow, fast = noisy(1, slower=0.2)
    a, b = [slow() for _ in range(60)], [fast() for _ in range(60)]
    one, other = compare("a", "b", a, b), compare("b", "a", b, a)
    assert (one.outcome, other.outcome) == (SLOWER, FASTER)
    assert one.ratio == pytest.approx(1 / other.ratio)
    assert one.speedup == pytest.approx(other.ratio)
    assert "a takes 1.2" in sentence(one)


def test_pairs_grow_only_while_the_verdict_is_unsure():
    """A clear case costs 30 pairs, an unclear one all of them."""
    # which side goes first is drawn: with any draw the sides get other samples
    assert compare_while_sampling("a", "b", *noisy(2, slower=0.5), Rule(), order=random.Random(2)).pairs == 30
    noisier = noisy(2, slower=0.012, spread=0.05)
    assert compare_while_sampling("a", "b", *noisier, Rule(), order=random.Random(2)).pairs == 240


def test_time_limits_the_looks_and_it_is_said():
    """A look that has begun is finished, the next one not begun."""
    clock = iter(float(second) for second in range(1000))
    found = compare_while_sampling(
        "a",
        "b",
        *noisy(3, slower=0.012, spread=0.05),
        Rule(),
        clock=clock.__next__,
        limit_s=0.5,
        order=random.Random(3),
    )
    assert found.pairs == 30
    assert "the time was up" in found.notes[0]


def test_the_same_pairs_get_the_same_verdict_again():
    """A verdict is recomputed from the record, not remembered."""
    slow, fast = noisy(4, slower=0.03)
    pairs = [slow() for _ in range(40)], [fast() for _ in range(40)]
    assert to_json(compare("a", "b", *pairs)) == to_json(compare("a", "b", *pairs))


def test_processes_must_agree():
    """Where memory lies differs between two processes of one code: 5 % in one of them is luck, in all of them code."""
    lucky = [1.05e-3] * 15 + [1e-3] * 15
    steady = [1e-3] * 30
    assert compare("a", "b", [1.05e-3] * 30, steady, blocks=(15, 15)).outcome == SLOWER
    once = compare("a", "b", [*lucky, *[1.05e-3] * 90], [*steady, *[1e-3] * 90], blocks=(15, 15, 90))
    assert once.outcome == UNSURE
    assert "do not agree" in once.notes[-1]


def test_processes_that_lie_apart_by_chance_raise_no_more_alarms_than_they_may():
    """Each pair of processes is faster or slower by its own luck, the pairs within it all alike: 1 alarm in 100 is
    allowed, and each of four by the same word, as luck has it one time in eight, is not enough.
    """
    generator, alarms = random.Random(9), 0
    for _ in range(200):
        medians = [generator.gauss(0, 0.03) for _ in range(4)]
        mine = [1e-3 * math.exp(middle + generator.gauss(0, 0.003)) for middle in medians for _ in range(15)]
        alarms += compare("a", "b", mine, [1e-3] * 60, blocks=(15,) * 4).outcome in (FASTER, SLOWER)
    assert alarms <= 4


def test_processes_that_lie_apart_hide_no_difference_that_is_larger():
    """10 % is found in eight pairs of processes that differ by 3 % of themselves, and its p is that of the eight."""
    generator, found = random.Random(10), []
    for _ in range(50):
        medians = [0.1 + generator.gauss(0, 0.03) for _ in range(8)]
        mine = [1e-3 * math.exp(middle + generator.gauss(0, 0.003)) for middle in medians for _ in range(15)]
        found.append(compare("a", "b", mine, [1e-3] * 120, blocks=(15,) * 8))
    assert sum(one.outcome == SLOWER for one in found) >= 48
    assert min(one.p for one in found) > 1e-9


def test_students_t_is_scipys():
    """Own code against a library's."""
    stats = pytest.importorskip("scipy.stats")
    for freedom in (1, 2, 3, 4, 7, 8, 30):
        for t in (0.0, 0.5, 2.0, 9.0):
            assert student_p(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-6, abs=1e-9)
        for p in (0.2, 0.005):
            assert student_quantile(p, freedom) == pytest.approx(stats.t.ppf(1 - p / 2, freedom), rel=1e-6)


def test_a_spike_on_one_side_changes_nothing():
    """Medians of pairs forgive single disturbances."""
    quiet = [1e-3] * 60
    assert compare("a", "b", [*quiet[:-3], 1.0, 1.0, 1.0], quiet).outcome == SAME


def test_fewer_than_five_pairs_or_unequal_sides_are_refused():
    """Nothing can be concluded from them."""
    with pytest.raises(ValueError, match="pairs are needed"):
        compare("a", "b", [1.0] * 4, [1.0] * 4)
    with pytest.raises(ValueError, match="pairs are needed"):
        compare("a", "b", [1.0] * 9, [1.0] * 8)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (1.011, 1.2, SLOWER),
        (1.009, 1.2, UNSURE),
        (0.8, 0.98, FASTER),
        (0.8, 0.995, UNSURE),
        (0.992, 1.009, SAME),
        (0.8, 1.2, UNSURE),
    ],
)
def test_the_interval_must_lie_clear_of_the_band(low, high, word):
    """Significant and relevant are asked together."""
    assert place(low, high, 0.01) == word


def test_rank_test_agrees_with_scipy():
    """Own code against a library's, with ties."""
    stats = pytest.importorskip("scipy.stats")
    generator = random.Random(7)
    for _ in range(10):
        a = [round(generator.gauss(0, 1), 1) for _ in range(30)]
        b = [round(generator.gauss(0.4, 1), 1) for _ in range(25)]
        expected = stats.mannwhitneyu(a, b, alternative="two-sided", method="asymptotic")
        assert mann_whitney(a, b)[0] == pytest.approx(expected.pvalue, rel=1e-9)
    assert mann_whitney([1.0] * 5, [1.0] * 5)[0] == 1.0


def test_sign_test_agrees_with_the_binomial():
    """18 of 20 beyond the edge: 2 * (190 + 20 + 1) / 2^20."""
    assert sign_test([0.1] * 18 + [0.0] * 2, 0.01) == pytest.approx(2 * 211 / 2**20)


def test_bootstrap_interval_holds_the_median_as_often_as_it_says():
    """99 % asked, 96 % demanded of 100 skewed sets."""
    generator = random.Random(8)
    held = 0
    for seed in range(100):
        low, high = bootstrap_median([generator.expovariate(math.log(2)) for _ in range(60)], 0.99, seed)
        held += low <= 1.0 <= high
    assert held >= 96


def test_holm_keeps_the_order_and_never_lowers():
    """Step-down: adjusted p are monotone and at least the raw ones."""
    p = [0.2, 0.001, 0.04, 0.03]
    adjusted = holm(p)
    assert adjusted == pytest.approx((0.2, 0.004, 0.09, 0.09))


def test_one_lucky_verdict_among_many_is_taken_back():
    """At 1 % each, two of two hundred comparisons would be wrong."""
    quiet = [compare("a", "b", [1.0, 1.001] * 15, [1.001, 1.0] * 15) for _ in range(200)]
    weak = compare("a", "b", [1.03] * 24 + [0.9] * 6, [1.0] * 30, rule=Rule(confidence=0.9, looks=(30,)))
    assert weak.outcome == SLOWER
    assert corrected([weak])[0].outcome == SLOWER
    among = corrected([*quiet, weak], alpha=0.001)[-1]
    assert among.outcome == UNSURE
    assert "among 201 comparisons" in among.notes[-1]


def test_geometric_mean_of_inverse_ratios_is_one():
    """The right mean for ratios: twice as fast and half as fast is the same."""
    slow, fast = compare("a", "b", [2.0] * 30, [1.0] * 30), compare("a", "b", [1.0] * 30, [2.0] * 30)
    assert geometric_mean([slow, fast]).ratio == pytest.approx(1.0)
    assert geometric_mean([slow, slow]).outcome == SLOWER
    with pytest.raises(ValueError, match="nothing"):
        geometric_mean([])


def test_recordings_need_a_wider_band():
    """Taken apart in time, 3 % is drift; 20 % is not."""
    generator = random.Random(9)
    old, new = ([1e-3 * math.exp(generator.gauss(shift, 0.02)) for _ in range(40)] for shift in (0.0, 0.03))
    assert compare_recorded("new", "old", new, old, band=0.05).outcome != SLOWER
    assert compare_recorded("new", "old", [value * 1.2 for value in new], old, band=0.05).outcome == SLOWER


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("softmax:cpp_twopass", ("softmax", "cpp_twopass", "", "None")),
        ("softmax:cpp_twopass@HEAD~3", ("softmax", "cpp_twopass", "HEAD~3", "None")),
        (
            "matmul:triton_tiled@main[BLOCK=64, FAST=True, KIND=a]",
            ("matmul", "triton_tiled", "main", "BLOCK=64, FAST=True, KIND=a"),
        ),
        ("matmul:triton_tiled[]", ("matmul", "triton_tiled", "", "default")),
    ],
)
def test_sides_are_understood(text, fields):
    """Implementation, revision and config in one word."""
    side = parse_side(text)
    assert (side.operator, side.implementation, side.revision, str(side.config)) == fields


@pytest.mark.parametrize(
    "text", ["", "softmax", "softmax:", ":x", "a:b:c", "a:b@", "a:b[", "a:b[x]", "a:b[=3]", "a:b[x=]"]
)
def test_sides_that_mean_nothing_are_refused(text):
    """With an example of what would."""
    with pytest.raises(UsageError):
        parse_side(text)


def test_a_folder_is_taken_from_a_revision(tmp_path):
    """The files as they were, while the ones at hand have changed."""
    import subprocess

    def git(*words):
        subprocess.run(
            ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.org", *words],
            check=True,
            capture_output=True,
        )

    folder = tmp_path / "ops" / "thing"
    folder.mkdir(parents=True)
    (folder / "op.py").write_text("old")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "old")
    (folder / "op.py").write_text("new")
    found = folder_at(folder, "HEAD", tmp_path / "scratch")
    assert (found / "op.py").read_text() == "old"
    assert (folder / "op.py").read_text() == "new"
    with pytest.raises(UsageError, match="no 'nope'"):
        folder_at(folder, "nope", tmp_path / "scratch")
    with pytest.raises(UsageError):
        folder_at(folder, "--output=/tmp/x", tmp_path / "scratch")


def outcomes(home, a, b, *, isolated=False):
    pytest.importorskip("torch")
    from opforge.registry import load
    from opforge.runner import InProcess, Isolated
    from opforge.timing import Plan
    from opforge.workbench import compare_sides

    registry = load([home])
    workloads = registry.operator("twice").workloads
    host = Isolated() if isolated else InProcess()
    try:
        return list(
            compare_sides(registry, parse_side(a), parse_side(b), host, workloads=workloads, plan=Plan(budget_s=1.0))
        )
    finally:
        host.close()


def test_twelve_times_the_work_is_slower(home):
    """The whole way: verified, bound, warmed, sampled in pairs, judged."""
    (found,) = outcomes(home, "twice:torch_slow", "twice:torch_eager")
    assert found.comparison.outcome == SLOWER, found
    assert found.comparison.ratio > 2
    assert median(found.comparison.samples_a_s) > median(found.comparison.samples_b_s)
    assert found.a.checked[-1].case.name == "some"
    assert sum(found.comparison.blocks) == found.comparison.pairs
    assert len(found.comparison.blocks) >= 4


def test_a_wrong_side_is_never_timed(home):
    """A wrong kernel has no speed."""
    (found,) = outcomes(home, "twice:torch_wrong", "twice:torch_eager")
    assert found.comparison is None
    assert "did not pass" in found.reason


def test_a_revision_meets_the_files_as_they_are(home):
    """The implementation got slower since the commit."""
    import subprocess

    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "-m", "first"],
    ):
        subprocess.run(["git", "-C", str(home), *words], check=True, capture_output=True)
    (home / "twice" / "torch_eager.py").write_text((home / "twice" / "torch_slow.py").read_text())
    (found,) = outcomes(home, "twice:torch_eager", "twice:torch_eager@HEAD")
    assert found.comparison.outcome == SLOWER, found


def test_a_side_that_remembers_its_last_answer_is_not_believed(home):
    """Right on every input, new ones too, and quick for the one that is timed over and over."""
    (home / "twice" / "torch_slow.py").write_text(
        '"""Keeps what it was asked last."""\n\nimport torch\n\nlast = []\n\n\ndef run(x):\n'
        "    if last and torch.equal(last[0], x):\n        return last[1].clone()\n"
        "    for _ in range(400):\n        y = x + x\n    last[:] = [x.clone(), y]\n    return y.clone()\n"
    )
    (found,) = outcomes(home, "twice:torch_slow", "twice:torch_eager")
    assert found.comparison is None
    assert "not believed after" in found.reason, found.reason


LIBRARY = """def add(x, times):
    for _ in range(times):
        y = x + x
    return y
"""


def make_venv(folder, version):
    """An environment that sees this one's packages, and has its own version of a library: `libspeed`."""
    import sysconfig
    import venv
    from pathlib import Path

    venv.create(folder, with_pip=False, symlinks=True)
    packages = next(Path(folder).glob("lib/python*/site-packages"))
    here = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (packages / "others.pth").write_text("\n".join(here) + "\n")
    (packages / "libspeed.py").write_text(f"{LIBRARY}TIMES = {version}\n")
    return str(folder)


@pytest.mark.slow
def test_two_environments_meet(home, tmp_path, capsys):
    """The same code with two versions of a library, each in its own virtual environment, by folder and by
    interpreter.
    """
    pytest.importorskip("torch")
    (home / "twice" / "torch_eager.py").write_text(
        '"""What the library makes of it."""\n\n\ndef run(x):\n    import libspeed\n\n    return libspeed.add(x, '
        "libspeed.TIMES)\n"
    )
    # on a busy machine asking a worker takes as long as many calls of a few microseconds, and both clocks must agree
    definition = home / "twice" / "op.py"
    definition.write_text(definition.read_text().replace("{'rows': 64, 'cols': 256}", "{'rows': 1024, 'cols': 1024}"))
    new, old = make_venv(tmp_path / "new", 12), make_venv(tmp_path / "old", 1)
    command_line()(
        [
            "--home",
            str(home),
            "compare",
            "twice:torch_eager",
            "twice:torch_eager",
            "--python-a",
            new,
            "--python-b",
            f"{old}/bin/python",
            "--budget",
            "1",
        ],
        standalone_mode=False,
    )
    said = capsys.readouterr().out
    assert "SLOWER: twice:torch_eager" in said, said
    assert f"({new}/bin/python) takes" in said
    assert "A: torch" in said


@pytest.mark.parametrize("place", ["/nowhere/venv", "/etc/passwd", "/tmp"])
def test_an_environment_that_is_not_there_is_said(place):
    """Before anything is verified."""
    with pytest.raises(UsageError, match="python3 -m venv"):
        parse_side("softmax:torch_eager", place)


def test_an_environment_without_torch_is_said(tmp_path):
    """With the command that puts it there."""
    import venv

    from opforge.core.language.errors import EnvironmentLacks
    from opforge.workbench.sides import interpreter, toolchain_versions

    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    with pytest.raises(EnvironmentLacks, match="pip install torch"):
        toolchain_versions(interpreter(str(tmp_path / "bare")))


TUNABLE = """// As often as it is told.
/* opforge
space = {TIMES = [1, 60]}
default = {TIMES = 1}
*/
#include "opforge/host.h"

#ifndef TIMES
#define TIMES 1
#endif

namespace {

void twice(opforge::TensorView x, opforge::TensorView y) {
  const volatile float* from = opforge::data<const float>(x);
  volatile float* to = opforge::data<float>(y);
  for (int turn = 0; turn < TIMES; ++turn) {
    for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] + from[i];
  }
}

}  // namespace

OPFORGE_EXPORT(run, twice)
"""


@pytest.mark.slow
def test_a_config_meets_the_default(home):
    """Two points of a tunable space, the slow one asked for by name."""
    import shutil

    if shutil.which("g++") is None:
        pytest.skip("needs g++, and it is not on PATH")
    (home / "twice" / "cpp_loop.cpp").write_text(TUNABLE)
    definition = home / "twice" / "op.py"
    definition.write_text(definition.read_text().replace("'torch_wrong'", "'torch_wrong', 'cpp_loop'"))
    (found,) = outcomes(home, "twice:cpp_loop[TIMES=60]", "twice:cpp_loop", isolated=True)
    assert found.comparison is not None, found.reason
    assert found.comparison.outcome == SLOWER
    with pytest.raises(UsageError, match="not in its space"):
        outcomes(home, "twice:cpp_loop[TIMES=7]", "twice:cpp_loop")


def test_unknown_settings_are_refused(home):
    """A misspelt tunable must not be timed as the default."""
    with pytest.raises(UsageError, match="no tunable 'BLOCK'"):
        outcomes(home, "twice:torch_eager[BLOCK=3]", "twice:torch_eager")


def test_compare_prints_the_word_and_exits_0(home, capsys):
    """A slower side is an answer, not a failure."""
    pytest.importorskip("torch")
    with pytest.raises(SystemExit) as ended:
        command_line()(
            [
                "--home",
                str(home),
                "compare",
                "twice:torch_slow",
                "twice:torch_eager",
                "--in-process",
                "--budget",
                "0.5",
            ],
            standalone_mode=True,
        )
    assert ended.value.code == 0
    assert "some float32: SLOWER: twice:torch_slow takes" in capsys.readouterr().out


@pytest.mark.campaign
def test_a_sweep_times_every_size_and_draws(home, tmp_path, monkeypatch, capsys):
    """More rows take more time; each size is verified, recorded and in the picture."""
    pytest.importorskip("torch")
    pytest.importorskip("sqlalchemy")
    monkeypatch.setenv("OPFORGE_STORE", str(tmp_path / "records.sqlite"))
    picture = tmp_path / "sweep.svg"
    words = [
        "--home",
        str(home),
        "sweep",
        "twice",
        "--axis",
        "rows=16:16384:log4",
        "-i",
        "torch_eager",
        "--in-process",
        "--budget",
        "0.1",
        "--plot",
        str(picture),
        "--json",
    ]
    with pytest.raises(SystemExit) as ended:
        command_line()(words)
    assert ended.value.code == 0
    import json

    curve = json.loads(capsys.readouterr().out)["curves"]["torch_eager"]
    assert [point["value"] for point in curve] == [16, 161, 1625, 16384]
    assert curve[-1]["seconds"] > curve[0]["seconds"]
    assert picture.read_text().count("<circle") >= 4
    with pytest.raises(UsageError, match="no axis 'depth'"):
        command_line()(
            ["--home", str(home), "sweep", "twice", "--axis", "depth=1:4", "--in-process"], standalone_mode=False
        )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--workload", "some", "--workload", "sone"), "No workload named 'sone'. Did you mean 'some'"),
        (("--dtype", "float64"), "No dtype named 'float64'. Did you mean 'float32'"),
    ],
)
def test_what_the_operator_does_not_have_is_not_compared(home, words, said):
    """A misspelt workload beside a right one was left out in silence, and a dtype that is not defined was called
    broken.
    """
    with pytest.raises(UsageError, match=said):
        command_line(["compare"])(
            ["--home", str(home), "compare", "twice:torch_slow", "twice:torch_eager", *words], standalone_mode=False
        )


@pytest.mark.parametrize("verb", [("compare", "twice:torch_slow", "twice:torch_eager"), ("tune", "twice")])
def test_where_no_workload_fits_the_ones_there_are_are_named(home, verb):
    """Nothing to measure ended without a word, or with a trace."""
    definition = home / "twice" / "op.py"
    definition.write_text(definition.read_text().replace("scale='laptop'", "scale='gpu'"))
    with pytest.raises(
        UsageError, match=r"twice has no workload sized for cpu\. It has: some\. Name one with: --workload"
    ):
        command_line([verb[0]])(["--home", str(home), *verb, "--device", "cpu"], standalone_mode=False)


def test_what_stands_in_for_a_device_is_said_in_words():
    """Nobody should have to read Emulated(how='interpreter')."""
    assert str(Emulated(how="interpreter")) == "verified by interpreter here, never timed"
