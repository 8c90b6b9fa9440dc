"""The loop: what rules propose, what is refused, what is kept and what is rolled back, and that a run goes on."""

import hashlib
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from opforge.cli.app import command_line
from opforge.core.definition.implementation import Config
from opforge.core.definition.operator import Case
from opforge.core.evidence.comparison import FASTER, SAME, UNSURE, Comparison
from opforge.core.evidence.diagnosis import INDEXING, MEMORY, Diagnosis, Direction, Evidence
from opforge.core.evidence.optimization import END, INTERFACE, KEPT, LOGIC, PARAMETERS, ROLLED_BACK, ROUND, START
from opforge.core.evidence.timing import Timing
from opforge.core.evidence.verdict import Broken, Pass
from opforge.core.language.errors import UsageError
from opforge.forge import files_of, from_formula, generate
from opforge.forge.loop import optimize as loop_module
from opforge.forge.loop.changes import claims_less, classified, refusal
from opforge.forge.loop.choices import AS_GENERATED, POOR, SPACE, has_rules, opened, with_choices, with_default
from opforge.forge.loop.engine import Situation, unanswered
from opforge.forge.loop.optimize import LoopOptions, optimize
from opforge.forge.loop.patience import Patience, note
from opforge.forge.loop.patterns import patterns
from opforge.forge.loop.rules import BLOCK, Rules
from opforge.forge.loop.trials import Met, Trials
from opforge.forge.loop.triton_choices import opened_triton
from opforge.registry import load
from opforge.registry.implementation_files import read_implementation
from opforge.report.optimization_log import optimization_log
from opforge.store import Store, read_lines
from test_forge import failures

FORMULAS = {
    "gated": "out = silu(x[*lead, cols] * scale[cols])",
    "flat": "out = x * y",
    "norm": "y = x[*lead, cols] * rsqrt(mean(square(x)) + eps)",
}


def generated(name):
    parameters = {"eps": 1e-5} if name == "norm" else {}
    files = files_of(from_formula(name, FORMULAS[name], parameters))
    return next((file, text) for file, text in files.items() if file.startswith("cpp"))


@pytest.mark.parametrize(("name", "own"), [("gated", {"PART"}), ("flat", set()), ("norm", {"SUMS"})])
def test_generated_cpp_is_given_a_space_that_reads_as_any_other(name, own, tmp_path):
    file, text = generated(name)
    made = opened(text, POOR)
    (tmp_path / file).write_text(made)
    read = read_implementation(name, tmp_path, file.removesuffix(".cpp"))
    assert set(read.space) == own | {"WIDE", "STREAM", "GRAIN", "SHARE"}
    assert read.default.as_dict() == {key: POOR[key] for key in read.space}
    again = with_default(made, False, {key: AS_GENERATED[key] for key in read.space})
    assert again == opened(text)
    assert classified(made, again, ".cpp") == PARAMETERS
    assert classified(text, again, ".cpp") == LOGIC
    assert all(POOR[key] in SPACE[key] and AS_GENERATED[key] in SPACE[key] for key in SPACE)
    with pytest.raises(UsageError, match="no C\\+\\+ kernel as `opforge new` writes it"):
        opened(made)


TRITON = {
    "tiles": ("out = x[*lead, cols] + bias[cols] * gate[*lead]", {"TILE", "GRID", "num_warps"}),
    "whole": ("y = x[*lead, cols] * rsqrt(mean(square(x)) + eps)", {"ROWS", "WARPS"}),
    "plain": ("y = softmax(x[*lead, cols])", {"ROWS", "WARPS"}),
}


def opened_in(folder, name, **settings):
    """A generated folder whose Triton kernel has choices, other than those it was written with."""
    formula, _ = TRITON[name]
    generate(load(), from_formula(name, formula, {"eps": 1e-5} if "eps" in formula else {}), folder)
    (path,) = (folder / name).glob("triton_*.py")
    text = opened_triton(path.read_text())
    path.write_text(with_default(text, True, {**read_default(path, text), **settings}))
    return path


def read_default(path, text):
    path.write_text(text)
    return read_implementation(path.parent.name, path.parent, path.stem).default.as_dict()


@pytest.mark.parametrize("name", TRITON)
def test_generated_triton_is_given_a_space_that_reads_as_any_other(name, tmp_path):
    """Grid, rows of a program and warps: callers see no difference, and what it did before is its default."""
    formula, tunables = TRITON[name]
    text = files_of(from_formula(name, formula, {"eps": 1e-5} if "eps" in formula else {}))
    (plain,) = (one for file, one in text.items() if file.startswith("triton_"))
    path = opened_in(tmp_path, name)
    found = read_implementation(name, path.parent, path.stem)
    assert set(found.space) == tunables and all(found.default.as_dict()[key] in found.space[key] for key in tunables)
    assert classified(plain, path.read_text(), ".py") == LOGIC and not refusal(path.read_text(), ".py", plain)
    assert with_choices("triton", path.read_text()) is None and has_rules(found)
    # changed by hand so that choices do not fit: what it has itself is left
    assert with_choices("triton", plain.replace("columns_in_32_bits", "c").replace("row_on_chip", "c")) is None
    assert with_choices("triton", plain.replace("inside", "GRID")) is None
    if name == "tiles":
        tuned = with_default(plain, True, {"TILE": 2048, "num_warps": 8})
        assert '"TILE": 2048, "GRID": 1, "num_warps": 8' in with_choices("triton", tuned)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("tiles", {"GRID": 2, "TILE": 1024, "num_warps": 2}),
        ("tiles", {"GRID": 3, "TILE": 1024, "num_warps": 2}),
        ("whole", {"ROWS": 4, "WARPS": 2}),
        ("plain", {"ROWS": 1, "WARPS": 16}),
    ],
)
def test_what_is_chosen_in_generated_triton_is_right(name, settings, tmp_path):
    opened_in(tmp_path, name, **settings)
    assert failures(tmp_path, name, ("float32",), ("triton",)) == ({}, {"triton"})


def test_a_default_in_python_is_written_anew():
    text = 'SPACE = {"BLOCK": (1, 2)}\nDEFAULT = {"BLOCK": 1, "num_warps": 4}\n\n\ndef launch(x, y, BLOCK): ...\n'
    made = with_default(text, True, {"BLOCK": 2, "num_warps": 8})
    assert 'DEFAULT = {"BLOCK": 2, "num_warps": 8}' in made and classified(text, made, ".py") == PARAMETERS
    with pytest.raises(UsageError, match="no literal DEFAULT"):
        with_default("x = 1\n", True, {})


HOSTILE = [
    ('#include "/etc/passwd"\n', "includes '/etc/passwd'"),
    ("#include <fstream>\n", "includes 'fstream'"),
    ("#inc\\\nlude <fstream>\n", "includes 'fstream'"),
    ("%:include <fstream>\n", "includes 'fstream'"),
    ('void f() { system("rm -rf /"); }\n', "names 'system'"),
    ('asm(".incbin \\"/etc/passwd\\"");\n', "names 'asm'"),
    ("__attribute__((constructor)) void f();\n", "names '__attribute__((constructor'"),
    ("#embed <x>\n", "directive #embed"),
    ("\0", "no text"),
    ("x" * 70_000, "letters"),
]


@pytest.mark.parametrize(("added", "why"), HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_no_kernel_is_refused_before_it_is_compiled(added, why):
    _, text = generated("gated")
    assert refusal(text, ".cpp", text) == ""
    assert why in refusal(added + text if added != "\0" else added, ".cpp", text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import os\ndef launch(x, y): ...\n", "imports 'os'"),
        ("from opforge.store import Store\ndef launch(x, y): ...\n", "imports opforge.store"),
        ("def launch(x, y):\n    eval('1')\n", "names 'eval'"),
        ("def launch(x, y):\n    x.__class__.__bases__\n", "reaches for"),
        ("def launch(x, y, z): ...\n", "changes what callers see"),
        ("def launch(x, y:\n", "no Python"),
    ],
)
def test_hostile_python_is_refused(text, why):
    assert why in refusal(text, ".py", "def launch(x, y): ...\n")


def test_an_interface_is_not_changed_under_another_name():
    _, text = generated("gated")
    other = text.replace("void gated(opforge::TensorView x, ", "void gated(")
    assert classified(text, other, ".cpp") == INTERFACE
    assert "changes what callers see" in refusal(other, ".cpp", text)
    assert claims_less(PARAMETERS, LOGIC) and not claims_less(LOGIC, PARAMETERS)


# --- the engine of rules ----------------------------------------


def diagnosis(bottleneck=MEMORY, fraction=0.5):
    return Diagnosis(
        operator="gated", implementation="cpp_rows", workload="w", dtype="float32", device="made", config="",
        bottleneck=bottleneck, because="because of that", fraction=fraction,
        evidence=(Evidence(name="time", value="1 ms", source="a test"),),
        directions=(Direction(what="a", why="b", command="opforge list"),) * 2,
    )  # fmt: skip


def situation(tmp_path, text=None, rounds=(), past=(), **more):
    file, plain = generated("gated")
    text = plain if text is None else text
    (tmp_path / file).write_text(text)
    read = read_implementation("gated", tmp_path, "cpp_rows")
    return Situation(
        text=text, implementation=read, diagnosis=diagnosis(**more), rounds=rounds, past=past, family="cpp_rows",
        described="gated", allows=lambda item, config: config.as_dict()["GRAIN"] < 1e9 or not config.as_dict()["SHARE"],
    )  # fmt: skip


def test_rules_follow_the_bottleneck_and_open_generated_code(tmp_path):
    rules = Rules(tmp_path / "scratch")
    walked = rules.propose(situation(tmp_path, bottleneck=INDEXING))
    variants = list(walked.variants)
    assert walked.strategy == BLOCK and [one.change for one in variants] == ["PART 1048576 → 1"]
    assert all(one.claims == LOGIC and "chosen::map_row<Choices>" in one.text for one in variants)
    assert rules.propose(situation(tmp_path, bottleneck=MEMORY)).strategy == "memory access"
    assert rules.propose(situation(tmp_path, bottleneck=MEMORY, fraction=0.01)).strategy == BLOCK


def test_conservative_rules_change_one_parameter_in_the_seeds_order(tmp_path):
    text = opened(generated("gated")[1], POOR)
    rules, rounds, found = Rules(tmp_path / "scratch", conservative=True), [], []
    while (proposal := rules.propose(situation(tmp_path, text, rounds))) is not None:
        variants = list(proposal.variants)
        assert all(one.claims == PARAMETERS and "," not in one.change for one in variants)
        found.append((proposal.strategy, variants[0].change.split()[0]))
        tried = tuple(SimpleNamespace(source=one.text, ratio=9.0, reason="") for one in variants)
        rounds.append(SimpleNamespace(strategy=proposal.strategy, tried=tried, comparison=None))
    names = [("block size", "PART"), ("memory access", "WIDE"), ("memory access", "STREAM"), ("grid", "GRAIN")]
    assert found == names


def test_what_was_unsure_or_near_is_asked_again(tmp_path):
    text = opened(generated("gated")[1], POOR)
    rules = Rules(tmp_path / "scratch")
    first = list(rules.propose(situation(tmp_path, text)).variants)
    unsure = comparison(UNSURE, 0.6)

    def given(ratio, compared, reason=""):
        tried = tuple(SimpleNamespace(source=one.text, ratio=ratio, reason=reason) for one in first)
        return situation(tmp_path, text, [SimpleNamespace(strategy="x", tried=tried, comparison=compared)])

    assert {one.text for one in first} <= given(1.1, None).seen()
    assert not given(1.1, None).seen(again=True) and given(9.0, None).seen(again=True)
    assert not given(9.0, unsure).seen()
    assert given(77.0, None, note(0.8)).seen() and not given(77.0, None, note(0.8)).seen(again=True)


# --- the loop, on trials that are made up ----------------------------------------


def comparison(outcome, ratio):
    return Comparison(
        a="a", b="b", workload="w", dtype="float32", outcome=outcome, ratio=ratio, low=ratio * 0.99, high=ratio * 1.01,
        band=0.01, confidence=0.99, p=0.0, rank_p=0.0, samples_a_s=(1.0,) * 5, samples_b_s=(1.0,) * 5, spent_s=0.0,
    )  # fmt: skip


class MadeUp:
    """Trials whose times follow from the text: each choice that is not poor halves the time. `busy`: none is sure."""

    busy = False
    wrong = ""

    def __init__(self, registry, implementation, workload, dtype, *, device, host, folder, patience):
        self.registry, self.workload, self.dtype = registry, workload, dtype
        self.folder, self.number = folder, 0
        self.job = SimpleNamespace(recorded=lambda *_, **__: None)
        folder.mkdir(parents=True)

    def made(self, text):
        self.number += 1
        (self.folder / f"cpp_rows__c{self.number}.cpp").write_text(text)
        return read_implementation("gated", self.folder, f"cpp_rows__c{self.number}")

    def allows(self, implementation, config):
        return True

    def named(self, name):
        return None

    def tried(self, implementation, best):
        text = implementation.source.read_text()
        settings = implementation.default.as_dict()
        seconds = 1.0
        for name in ("PART", "WIDE", "STREAM"):
            seconds /= 2.0 if settings and settings[name] != POOR[name] else 1.0
        passed = SimpleNamespace(
            implementation=implementation, config=Config(()), seconds=seconds, proof=None,
            timing=SimpleNamespace(median_s=seconds),
        )  # fmt: skip
        case = Case(name="c", axes={"lead": (1,), "cols": 1}, why="")
        failed = bool(self.wrong) and f"{self.wrong}\n" in text and best is not None
        broken = Broken(case=case, dtype="float32", reason="wrong", isolation="none")
        verdict = broken if failed else Pass(checked=(), not_taken=(), isolation="none")
        ratio = None if failed else seconds / best.seconds if best else 1.0
        return SimpleNamespace(
            passed=None if failed else passed, verdict=verdict, ratio=ratio, reason="wrong" if failed else ""
        )

    def seconds(self, passed):
        return [item.seconds for item in passed]

    def met(self, candidate, best):
        ratio = candidate.seconds / best.seconds
        outcome = UNSURE if self.busy else FASTER if ratio < 0.99 else SAME
        return Met(
            comparison=comparison(outcome, ratio), verdict=Pass(checked=(), not_taken=(), isolation=""), reason=""
        )

    def drop(self, keep):
        pass

    def close(self):
        pass


@pytest.fixture
def made_up(monkeypatch, tmp_path):
    """run(**options) -> the rounds of a loop over a generated operator, its start poor; store and file in tmp_path."""
    home = tmp_path / "home"
    folder = home / "gated"
    folder.mkdir(parents=True)
    for file, text in files_of(from_formula("gated", FORMULAS["gated"])).items():
        (folder / file).write_text(opened(text, POOR) if file.startswith("cpp") else text)
    trials = type("Trials", (MadeUp,), {})
    monkeypatch.setattr(loop_module, "Trials", trials)
    monkeypatch.setattr(loop_module, "diagnosis_of", lambda *_, **__: diagnosis())
    from opforge.registry import load

    registry = load([home])

    def run(store, count=None, **more):
        options = LoopOptions(**{"target": 1000.0, "baseline": "", **more})
        item = next(one for one in registry.implementations("gated") if one.name == "cpp_rows")
        work = registry.operator("gated").workloads[0]
        found = []
        rounds = optimize(registry, item, work, "float32", options, Rules, None, store)
        for one in rounds:
            found.append(one)
            if len(found) == count:
                rounds.close()
                break
        return found

    run.trials, run.file, run.home = trials, folder / "cpp_rows.cpp", home
    return run


def test_what_is_faster_is_kept_and_the_rest_rolled_back(made_up, tmp_path):
    text = made_up.file.read_text()
    with Store.open(tmp_path / "s.sqlite") as store:
        rounds = made_up(store)
        assert store.rounds(operator="gated") == rounds
    assert [one.stage for one in rounds] == [START, *[ROUND] * (len(rounds) - 2), END]
    kept = [one for one in rounds if one.decision == KEPT]
    assert {one.strategy for one in kept} == {"memory access", "block size"}
    assert all(one.comparison.outcome == FASTER for one in kept)
    assert all(one.best == before.best for before, one in pairwise(rounds) if one.decision == ROLLED_BACK)
    assert rounds[-1].over_start == pytest.approx(8.0)
    after = made_up.file.read_text()
    assert after == rounds[-1].best and after != text
    assert after.count("PART = 1048576\n") == 1


def test_a_loop_ends_at_its_target_and_a_dry_run_changes_no_file(made_up, tmp_path):
    before = made_up.file.read_text()
    with Store.open(tmp_path / "s.sqlite") as store:
        rounds = made_up(store, target=1.5, write=False)
    assert "the target is reached" in rounds[-1].reason and len(rounds) == 3
    assert made_up.file.read_text() == before


@pytest.mark.parametrize(("baseline_s", "rounds"), [(2.0, 0), (0.3, 1), (0.2, 3)])
def test_near_the_roof_it_ends_unless_the_baseline_is_faster(made_up, tmp_path, monkeypatch, baseline_s, rounds):
    """97 % of the roof, and PyTorch's compiler at 99 %: the loop goes on until it is as fast, and ends then."""
    monkeypatch.setattr(loop_module, "diagnosis_of", lambda *_, **__: diagnosis(fraction=0.97))
    rival = SimpleNamespace(name="torch_compile")
    made_up.trials.named = lambda self, name: rival
    beside = SimpleNamespace(implementation=rival, seconds=baseline_s, timing=None, proof=None, config=Config(()))
    made_up.trials.beside = lambda self, known: beside
    with Store.open(tmp_path / "s.sqlite") as store:
        left = made_up(store, baseline="torch_compile", rounds=1, write=False)[-1]
        found = made_up(store, baseline="torch_compile", fresh=True)
    assert sum(one.stage == ROUND for one in found) == rounds
    assert found[-1].over_baseline >= 1 and "of the roofline bound is reached" in found[-1].reason
    assert (left.over_baseline < 1) == ("torch_compile is still" in left.reason) == (baseline_s == 0.2)


def test_two_unsure_rounds_end_it_and_keep_nothing(made_up, tmp_path):
    made_up.trials.busy = True
    with Store.open(tmp_path / "s.sqlite") as store:
        rounds = made_up(store)
    assert "2 comparisons in a row were UNSURE" in rounds[-1].reason
    assert KEPT not in [one.decision for one in rounds] and rounds[-1].best == rounds[0].best


def test_a_wrong_candidate_is_on_record_and_never_kept(made_up, tmp_path):
    made_up.trials.wrong = "WIDE = 1"
    with Store.open(tmp_path / "s.sqlite") as store:
        rounds = made_up(store)
    assert any(one.reason == "wrong" for each in rounds for one in each.tried)
    assert "WIDE = 0\n" in rounds[-1].best


def test_a_loop_that_was_cut_short_goes_on_after_its_last_round(made_up, tmp_path):
    with Store.open(tmp_path / "s.sqlite") as store:
        first = made_up(store, count=3)
        rounds = made_up(store)
        assert rounds[:3] == first and {one.run for one in rounds} == {first[0].run}
        assert [one.number for one in rounds if one.stage == ROUND] == [*range(1, len(rounds) - 1)]
        again = made_up(store, fresh=True)
        assert again[0].run != first[0].run


def test_the_log_and_the_patterns_come_from_the_rounds(made_up, tmp_path):
    where = str(tmp_path / "s.sqlite")
    with Store.open(where) as store:
        rounds = made_up(store)
    counted = {one.strategy: one for one in patterns(rounds)}
    assert (counted["block size"].kept, counted["block size"].tried) == (1, 1)
    assert counted["block size"].gain == pytest.approx(2.0) and counted["block size"].low < 0.5
    english, chinese = optimization_log(rounds, "en"), optimization_log(rounds, "zh")
    for text in ("### Current version", "### Bottleneck analysis", "### Change", "### Result", "### Lessons"):
        assert text in english
    for text in ("### 当前版本信息", "### 性能瓶颈分析", "### 修改方案", "### 测试结果", "### 经验总结", "- 新加速比"):
        assert text in chinese
    assert "+PART = 1048576" in english and "+PART = 1048576" in chinese
    run = lambda *words: CliRunner().invoke(command_line([words[0]]), ["--store", where, *words])  # noqa: E731
    assert run("log", "gated", "--lang", "zh").stdout.strip() == chinese.strip()
    assert json.loads(run("log", "gated", "--json").stdout)[0]["type"] == "OptimizationRound"
    assert json.loads(run("patterns", "--json").stdout)[0]["type"] == "Pattern"
    failed = run("log", "nothing")
    assert isinstance(failed.exception, UsageError) and str(failed.exception).endswith(" optimize nothing")


def test_a_round_that_says_something_else_under_one_id_is_refused(made_up, tmp_path):
    with Store.open(tmp_path / "s.sqlite") as store:
        first = made_up(store, count=1)[0]
        store.keep_round(first)
        with pytest.raises(UsageError, match="says something else"):
            store.keep_round(replace(first, reason="other"))
        assert hashlib.sha256(first.best.encode()).hexdigest() == first.start_sha256


def test_rounds_are_exported_and_imported_without_loss(made_up, tmp_path):
    with Store.open(tmp_path / "s.sqlite") as store, Store.open(tmp_path / "other.sqlite") as other:
        rounds = made_up(store)
        lines = list(store.export())
        assert other.import_lines(lines) == len(rounds) and other.import_lines(lines) == 0
        assert other.rounds() == rounds and list(other.export()) == lines
        assert list(read_lines(lines)) == [] and list(store.export(workload="w")) == []


@pytest.mark.slow
def test_a_poor_start_really_gets_faster(tmp_path):
    """Compiled, verified and timed: one parameter that costs a factor is found in one round."""
    home = tmp_path / "home"
    folder = home / "gated"
    folder.mkdir(parents=True)
    for file, text in files_of(from_formula("gated", FORMULAS["gated"])).items():
        (folder / file).write_text(opened(text, {**AS_GENERATED, "PART": 1}) if file.startswith("cpp") else text)
    words = [
        "--home",
        str(home),
        "--store",
        str(tmp_path / "s.sqlite"),
        "optimize",
        "gated",
        "--dtype",
        "float32",
        "--patience",
        "0",
    ]
    run = CliRunner().invoke(
        command_line(["optimize"]), [*words, "--device", "cpu", "--rounds", "1", "--baseline", "start", "--target", "9"]
    )
    assert run.exit_code == 0, run.output
    assert "PART = 1048576\n" in (folder / "cpp_rows.cpp").read_text()
    assert "PART 1 → 1048576" in Path(folder, "optimization_log.md").read_text()


# --- patience ----------------------------------------


def machine(tmp_path, idle, waited=0.0):
    """A root whose processors are idle in a share of the time, and a `sleep` under which its counters go on."""
    state = {"now": 0.0, "ticks": 0, "idle": 0, "waited": 0.0}

    def write():
        proc = tmp_path / "proc"
        (proc / "pressure").mkdir(parents=True, exist_ok=True)
        busy = state["ticks"] - state["idle"]
        (proc / "stat").write_text(f"cpu  {busy} 0 0 {state['idle']} 0 0 0 0 0 0\n")
        line = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={int(state['waited'] * 1e6)}\n"
        (proc / "pressure/cpu").write_text(line)

    def sleep(seconds):
        state["now"] += seconds
        state["ticks"] += int(200 * seconds)
        state["idle"] += int(200 * seconds * idle)
        state["waited"] += waited * seconds
        write()

    write()
    return Patience(40.0, root=tmp_path, clock=lambda: state["now"], sleep=sleep), sleep


def test_a_still_machine_is_not_waited_for(tmp_path):
    patience, sleep = machine(tmp_path, idle=1.0)
    patience.wait()
    assert patience.left > 39
    sleep(5.0)
    assert patience.disturbed() == 0


def test_a_busy_machine_costs_what_patience_there_is_and_no_more(tmp_path):
    """The seconds are for all waits together: a loop on a machine that is never still comes to its end."""
    patience, sleep = machine(tmp_path, idle=0.2, waited=0.6)
    spent = []
    for _ in range(4):
        before = patience.left
        patience.wait()
        spent.append(before - patience.left)
        sleep(2.0)
        assert patience.disturbed() == pytest.approx(0.6, abs=0.01)
    assert spent[0] >= 14 and sum(spent) <= 41 and spent[-1] == 0


def test_who_does_not_ask_is_never_disturbed(tmp_path):
    """An accelerator's kernels don't wait for the host's processors."""
    asks, sleep = machine(tmp_path, idle=0.2, waited=0.6)
    silent = Patience(None, root=tmp_path, clock=asks.clock, sleep=asks.sleep)
    silent.wait()
    asks.wait()
    sleep(2.0)
    assert silent.disturbed() == 0 and asks.disturbed() > 0.5 and silent.left == 0


def test_a_machine_that_counts_nothing_is_taken_as_it_is(tmp_path):
    patience = Patience(5.0, root=tmp_path / "nothing", sleep=lambda seconds: None)
    patience.wait()
    assert patience.disturbed() == 0 and patience.left > 4


def test_what_was_disturbed_is_asked_again_and_what_was_faster_is_not():
    quiet = comparison("SLOWER", 1.5)
    assert not unanswered(quiet) and unanswered(comparison("UNSURE", 1.0))
    assert unanswered(replace(quiet, notes=(note(0.4),)))
    assert not unanswered(replace(comparison("FASTER", 0.5), notes=(note(0.4),)))


@pytest.mark.parametrize(("share", "kept"), [(0.0, 15e-3), (0.9, 1e-3)])
def test_a_disturbed_time_does_not_take_the_place_of_a_shorter_one(share, kept):
    """A round that was kept as 1.98 times as fast stood on the page with 32 times the time of the version before."""

    def timing(seconds):
        return Timing(samples_s=(seconds,) * 5, batch=1, timer="host", cache="warm", overhead_s=0.0, conditions=())

    trials = Trials.__new__(Trials)
    trials.patience = SimpleNamespace(wait=lambda: None, disturbed=lambda: share, left=0.0)
    trials.job = SimpleNamespace(measure=lambda points, factor: [(one.candidate(), timing(15e-3)) for one in points])
    item = SimpleNamespace(candidate=lambda: None, timing=timing(1e-3))
    assert trials.seconds([item]) == [kept] and item.timing.median_s == kept
