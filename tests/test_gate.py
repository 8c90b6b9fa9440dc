"""The gate: what it concludes, and that a baseline only changes when told to. Looks are simulated; one goes the whole
way.
"""

import dataclasses
import json
import random
import subprocess
import xml.etree.ElementTree as xml

import pytest

from opforge.cli.app import command_line
from opforge.core.evidence.verdict import Broken, Unsupported
from opforge.core.language.errors import UsageError
from opforge.gate import (
    Baseline,
    Policy,
    SeriesKey,
    Sight,
    baseline_path,
    check,
    find_baseline,
    junit,
    key_of,
    load_baseline,
    markdown,
    save_baseline,
    select_records,
    settled_for,
    tightened,
)
from opforge.timing import Rule, compare_while_sampling
from simulated import make_home, noisy, passed, record

POLICY = Policy()


@pytest.fixture
def home(tmp_path):
    """A folder with one operator, `twice`, that has a slow and a wrong implementation."""
    return make_home(tmp_path)


def keys(count):
    return [
        SeriesKey(operator="softmax", implementation="cpp", workload=f"w{number}", dtype="float32")
        for number in range(count)
    ]


def looking(slower=None, seed=0, fresh=None, baseline=None, spread=0.02):
    """A `look` at simulated cases: `slower` by workload; what it was asked is kept in `.asked`."""

    def look(asked):
        look.asked.append(tuple(asked))
        found = {}
        for number, key in enumerate(asked):
            place = seed + 1000 * len(look.asked) + number
            factor = (slower or {}).get(key.workload, 0.0)
            factor = factor[len(look.asked) - 1] if isinstance(factor, tuple) else factor
            sides = noisy(place, factor, spread=spread)
            comparison = compare_while_sampling(
                "now", "then", *sides, Rule(), order=random.Random(place), settled=settled_for(POLICY.allowed)
            )
            found[key] = Sight(comparison=comparison, fresh=fresh or passed(), baseline=baseline or passed())
        return found

    look.asked = []
    return look


def test_unchanged_code_is_fine():
    """Forty cases, not one raised."""
    report = check("main", keys(40), looking(), POLICY)
    assert report.exit_code == 0, [finding for finding in report.findings if finding.state != "fine"]
    assert report.count("fine") == 40


def test_a_regression_is_found_among_many_and_confirmed():
    """Exit code 1, seen twice, and only the suspect is looked at again."""
    look = looking({"w7": 0.2})
    report = check("main", keys(30), look, POLICY)
    assert report.exit_code == 1
    (finding,) = [finding for finding in report.findings if finding.state == "regression"]
    assert finding.key.workload == "w7"
    assert "seen twice" in finding.words
    assert look.asked[1] == (finding.key,)


def test_a_suspicion_that_is_not_confirmed_is_fine():
    """A machine that was busy during the first look."""
    report = check("main", keys(5), looking({"w2": (0.2, 0.0)}), POLICY)
    assert report.exit_code == 0
    assert "did not confirm" in report.findings[2].words


def test_slower_by_less_than_is_allowed_is_fine():
    """2 % is real and tolerated."""
    assert check("main", keys(3), looking({"w1": 0.02}), POLICY).exit_code == 0


def test_a_threshold_of_its_own_goes_first():
    """A case that is known to be steady is held to more."""
    strict = {str(keys(3)[1]): 1.01}
    report = check("main", keys(3), looking({"w1": 0.04}, spread=0.005), POLICY, strict)
    assert [finding.state for finding in report.findings] == ["fine", "regression", "fine"]


def test_noise_beyond_what_is_allowed_is_unsure():
    """Exit code 4: neither fine nor a regression was shown."""
    report = check("main", keys(1), looking({"w0": 0.05}, spread=0.4), POLICY)
    assert report.exit_code == 4
    assert "quieter machine" in report.findings[0].words


def test_less_accurate_is_a_regression():
    """Faster and wrong in the last digits is not progress."""
    report = check("main", keys(1), looking(fresh=passed(p99=2e-6), baseline=passed(p99=1e-6)), POLICY)
    assert report.exit_code == 1
    assert "2.00 times what it was" in report.findings[0].words


def test_more_clipping_is_a_regression():
    """A scale that lets values run into the end of an 8-bit format hardly moves the median error."""
    report = check("main", keys(1), looking(fresh=passed(clip_ratio=0.02), baseline=passed(clip_ratio=0.004)), POLICY)
    assert report.exit_code == 1
    assert "2% of y in some are clipped" in report.findings[0].words
    assert "0.4% were" in report.findings[0].words
    for before, now in ((0.0, 0.0005), (0.02, 0.024), (None, 0.5)):
        assert (
            check(
                "main", keys(1), looking(fresh=passed(clip_ratio=now), baseline=passed(clip_ratio=before)), POLICY
            ).exit_code
            == 0
        )


def test_clipped_elements_are_counted():
    """What stands at the largest value of its dtype where the reference is finite, rightly or not."""
    torch = pytest.importorskip("torch")
    from opforge.verify.judging.elements import compare
    from opforge.verify.oracle.expectation import Expectation

    expected = torch.tensor([1.0, 500.0, -1000.0, float("inf"), 448.0, 2.0], dtype=torch.float64)
    actual = expected.clamp(-448, 448).to(torch.float8_e4m3fn)
    expectation = Expectation(output="y", dtype="float8_e4m3fn", expected=expected, bound=torch.ones_like(expected))
    assert compare(actual, expectation).metrics.clip_ratio == pytest.approx(3 / 6)


def test_accuracy_within_its_factor_is_fine():
    """Random inputs make the error vary."""
    assert check("main", keys(1), looking(fresh=passed(p99=1.2e-6), baseline=passed(p99=1e-6)), POLICY).exit_code == 0


def test_a_verdict_that_failed_is_a_regression_and_one_that_is_missing_unsure():
    """A kernel that breaks must not pass the gate for want of a time."""
    broken = Broken(case=None, dtype="float32", reason="it raised", isolation="none")
    assert (
        check(
            "main", keys(1), lambda asked: {key: Sight(comparison=None, fresh=broken) for key in asked}, POLICY
        ).exit_code
        == 1
    )
    report = check(
        "main",
        keys(1),
        lambda asked: {
            key: Sight(comparison=None, reason="no GPU", fresh=Unsupported(reason="no GPU")) for key in asked
        },
        POLICY,
    )
    assert report.exit_code == 4
    assert "no GPU" in report.findings[0].words


def test_nothing_to_look_at_is_fine():
    """Everything is what the baseline measured."""
    look = looking()
    report = check("main", [], look, POLICY, unchanged=keys(2))
    assert (report.exit_code, report.count("unchanged"), look.asked) == (0, 2, [])


def test_junit_and_markdown_say_the_same():
    """CI reads one, people the other; hostile names stay text."""
    nasty = SeriesKey(operator="soft|max<b>", implementation="cpp`x`", workload="w\x1b[31m", dtype="float32")
    report = check("main", [nasty, *keys(2)], looking({"w1": 0.3}), POLICY, unchanged=keys(4)[3:])
    suite = xml.fromstring(junit(report))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors"), suite.get("skipped")) == (
        "4",
        "1",
        "0",
        "1",
    )
    assert len(suite.findall("testcase/failure")) == 1
    text = markdown(report)
    assert text.startswith("### opforge check against `main`: regression")
    assert "soft\\|max&lt;b>" in text
    assert "\x1b" not in text


def test_only_good_timings_are_promoted():
    """The newest of each case; what did not pass or is suspect is left out, and said."""
    kept, refused = select_records(
        [
            record(1e-3, day=0),
            record(2e-3, day=1),
            record(day=2, workload="odd", suspect="too fast"),
            record(day=3, workload="x", verdict=Unsupported(reason="")),
        ]
    )
    assert [found.timing.median_s for found in kept] == [pytest.approx(2e-3)]
    assert len(refused) == 2


def test_a_baseline_survives_its_file(tmp_path):
    """Samples and all."""
    baseline = Baseline(name="main", promoted_at="2026-01-01", run="run", records=(record(),), thresholds={"x": 1.02})
    path = save_baseline(baseline, tmp_path / "deep" / "main.json")
    assert load_baseline(path) == baseline
    assert [file.name for file in path.parent.iterdir()] == ["main.json"]


@pytest.mark.parametrize("harm", ["truncate", "edit", "not json", "another format"])
def test_a_damaged_baseline_is_refused(tmp_path, harm):
    """A gate held against a damaged baseline means nothing."""
    path = save_baseline(
        Baseline(name="main", promoted_at="2026-01-01", run="run", records=(record(),)), tmp_path / "main.json"
    )
    text = path.read_text()
    data = json.loads(text)
    data["records"][0]["timing"]["samples_s"][0] = 1.0
    path.write_text(
        {
            "truncate": text[:-200],
            "edit": json.dumps(data),
            "not json": "[]x",
            "another format": json.dumps({"format": 99}),
        }[harm]
    )
    with pytest.raises(UsageError, match="opforge baseline promote"):
        load_baseline(path)


@pytest.mark.parametrize("name", ["", "../main", "a/b", ".hidden", "x" * 200])
def test_a_baseline_name_cannot_leave_its_folder(name):
    """A name is not a path."""
    with pytest.raises(UsageError):
        baseline_path(name)
    with pytest.raises(UsageError):
        find_baseline(name or "nothing")


def test_thresholds_only_tighten():
    """A noisy week must not loosen what was reached."""
    kept = record(1e-3)
    baseline = Baseline(name="main", promoted_at="", run="run", records=(kept,))
    steady = tightened(baseline, {key_of(kept): [1e-3, 1.01e-3] * 10})
    (threshold,) = steady.thresholds.values()
    assert 1.015 < threshold < 1.025
    noisy_week = tightened(steady, {key_of(kept): [1e-3, 1.5e-3] * 10})
    assert noisy_week.thresholds == steady.thresholds
    # where there is no threshold yet, what a check allows anyhow is the loosest
    assert tightened(baseline, {key_of(kept): [1e-3, 1.5e-3] * 10}).thresholds == {}
    assert tightened(baseline, {key_of(kept): [1e-3] * 5}).thresholds == {}
    assert tightened(baseline, {key_of(kept): [0.5e-3] * 50}).thresholds == {str(key_of(kept)): 1.01}


def test_thresholds_come_from_the_same_machine_and_from_passes_alone(tmp_path):
    """What was timed elsewhere, or cannot be true, must not move a threshold."""
    pytest.importorskip("sqlalchemy")
    from opforge.gate.remeasure import histories
    from opforge.store import Store

    kept = record(1e-3)
    elsewhere = {"facts": {"python": "3.12"}}
    with Store.open(tmp_path / "records.sqlite") as store:
        store.add([record(1e-3, day=day) for day in range(3)])
        store.add(
            [
                record(5e-3, day=4, **elsewhere),
                record(1e-9, day=5, suspect="too fast"),
                record(7e-3, day=6, workload="other"),
            ]
        )
        found = histories(store, Baseline(name="main", promoted_at="", run="run", records=(kept,)))
    assert found == {key_of(kept): [pytest.approx(1e-3)] * 3}


@pytest.mark.slow
def test_the_whole_way_from_bench_to_exit_code(home, tmp_path, monkeypatch, capsys):
    """CaseCache, promote, check: unchanged, fine, then a slower implementation that is found."""
    pytest.importorskip("torch")
    pytest.importorskip("sqlalchemy")
    monkeypatch.setenv("OPFORGE_STORE", str(tmp_path / "records.sqlite"))
    monkeypatch.setenv("OPFORGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)

    def git(*words):
        subprocess.run(
            ["git", "-C", str(home), "-c", "user.name=t", "-c", "user.email=t@example.org", *words],
            check=True,
            capture_output=True,
        )

    def opforge(*words):
        with pytest.raises(SystemExit) as ended:
            command_line()(["--home", str(home), *words])
        return ended.value.code

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    opforge("bench", "twice", "--in-process", "--budget", "0.2", "--backend", "torch", "-i", "torch_eager")
    assert opforge("baseline", "promote", "main", "--run", "newest") == 0
    capsys.readouterr()
    assert opforge("baseline", "--json") == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed["name"] == "main" and listed["cases"] > 0
    assert opforge("baseline", "show", "main", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == listed["cases"]
    check_words = ("check", "--against", "main", "--in-process", "--allowed", "1.5")
    (home / "twice" / "torch_eager.py").write_text((home / "twice" / "torch_slow.py").read_text())
    assert opforge(*check_words, "--junit", "junit.xml", "--markdown", "check.md") == 1
    assert xml.parse("junit.xml").getroot().get("failures") == "1"
    git("checkout", "-q", ".")
    assert opforge(*check_words, "--all") in (0, 4)


def test_what_has_not_changed_is_told_by_what_a_bench_records(home, tmp_path, monkeypatch):
    """The record says how each backend runs here: a fingerprint taken without that was never the same, and everything
    was measured again.
    """
    import opforge
    from opforge.backends.program_hash import program_sha256
    from opforge.backends.shared_code import source_sha256
    from opforge.gate.remeasure import unchanged
    from opforge.registry import load
    from opforge.timing import Plan
    from opforge.workbench import BenchOptions, environment_of

    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "-m", "first"],
    ):
        subprocess.run(["git", "-C", str(home), *words], check=True, capture_output=True)
    # as installed: in no repository of its own
    monkeypatch.setattr(opforge, "__file__", str(tmp_path / "site" / "opforge" / "__init__.py"))
    registry, plan = load([home]), Plan()
    operator, implementation = registry.operator("twice"), registry.implementation("twice", "torch_eager")
    here = {
        "environment": environment_of(operator, BenchOptions(device="cpu", plan=plan)),
        "source_sha256": source_sha256(implementation.source),
    }
    kept = dataclasses.replace(record(1e-3, operator="twice"), **here)
    baseline = Baseline(name="main", promoted_at="", run="run", records=(kept,))
    assert unchanged(registry, baseline, "cpu", plan) == (key_of(kept),)
    # another kernel's source, and a comment in its own: what it compiles to is what was measured
    for name in ("torch_slow.py", "torch_eager.py"):
        (home / "twice" / name).write_text((home / "twice" / name).read_text() + "\n# a remark\n")
    assert unchanged(load([home]), baseline, "cpu", plan) == (), "its record says no code"
    coded = dataclasses.replace(
        baseline, records=(dataclasses.replace(kept, code_sha256=program_sha256(implementation)),)
    )
    assert unchanged(load([home]), coded, "cpu", plan) == (key_of(kept),)
    definition = (home / "twice" / "op.py").read_text()
    (home / "twice" / "op.py").write_text(definition + "\n# the operator is another one\n")
    assert unchanged(load([home]), coded, "cpu", plan) == ()
    (home / "twice" / "op.py").write_text(definition)
    baseline = coded
    (home / "twice" / "torch_eager.py").write_text((home / "twice" / "torch_slow.py").read_text())
    assert unchanged(load([home]), baseline, "cpu", plan) == ()


def test_a_home_in_another_repository_than_opforge_is_unchanged_too(tmp_path, monkeypatch):
    """git was asked for the home's commit in opforge's repository, which has no such one: all was measured again."""
    from opforge.gate import remeasure
    from opforge.gate.remeasure import _same_since
    from opforge.machine import environments

    package, home = tmp_path / "checkout" / "opforge", tmp_path / "work" / "twice"
    for folder, name in ((package, "__init__.py"), (home, "op.py")):
        folder.mkdir(parents=True)
        (folder / name).write_text("1")
        for words in (
            ["init", "-q"],
            ["add", "."],
            ["-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "-m", name],
        ):
            subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)
    monkeypatch.setattr(remeasure, "PACKAGE", package)
    monkeypatch.setattr(environments, "PACKAGE", package)
    facts = environments._commit(home)
    assert _same_since(facts, home, ())
    assert not _same_since({"git.commit": facts["git.commit"]}, home, ()), "an older record does not say which opforge"
    (package / "__init__.py").write_text("2")
    assert not _same_since(facts, home, ())
