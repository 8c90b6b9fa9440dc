"""The engine of a language model against a real HTTP server that answers well, wrong, cut off, busy and hostile; and
the replay of what it answered.
"""

import json

import pytest
from typer.testing import CliRunner

from opforge.cli.app import command_line
from opforge.core.definition.operator import Case
from opforge.core.evidence.optimization import KEPT, ROUND
from opforge.core.evidence.verdict import Broken, Mismatch, Pass
from opforge.forge import files_of, from_formula
from opforge.forge.loop.beam import STRATEGY as BEAM
from opforge.forge.loop.choices import AS_GENERATED, POOR, opened, with_default
from opforge.forge.loop.feedback import feedback
from opforge.forge.loop.model import PROMPTS, Budget, Model, read_answer
from opforge.forge.loop.model_client import Endpoint, ask
from opforge.forge.loop.optimize import LoopOptions, optimize
from opforge.forge.loop.replay import Replay, differences
from opforge.registry import load
from opforge.store import Store
from scripted_model import scripted_model
from test_optimize import FORMULAS, MadeUp, made_up  # noqa: F401 - a fixture

KEY = "sk-very-secret"


@pytest.fixture
def server():
    with scripted_model() as made:
        yield made


def answer(text, told="Whole rows at once: fewer divisions.", finish="stop", status=200):
    return status, f"{told}\n\n```cpp\n{text}```\n", finish


def model(server, **budget):
    endpoint = Endpoint(url=f"http://127.0.0.1:{server.server_port}/v1", model="m", key=KEY)
    waits = lambda messages: ask(endpoint, messages, sleep=lambda seconds: None)  # noqa: E731
    return lambda scratch: Model(endpoint, Budget(**budget), asked=waits)


def rounds_of(made_up, make, store, **more):  # noqa: F811
    registry = load([made_up.home])
    item = next(one for one in registry.implementations("gated") if one.name == "cpp_rows")
    work = registry.operator("gated").workloads[0]
    options = LoopOptions(**{"target": 1000.0, "baseline": "", "rounds": 1, "patience_s": 0.0, **more})
    return list(optimize(registry, item, work, "float32", options, make, None, store))


def test_a_scripted_model_ends_with_the_right_kernel_ledger_and_log(made_up, server, tmp_path):  # noqa: F811
    start = made_up.file.read_text()
    settings = {name: POOR[name] for name in ("PART", "WIDE", "STREAM", "GRAIN", "SHARE")}
    wide = with_default(start, False, {**settings, "WIDE": 1})
    good = with_default(start, False, {**settings, "PART": AS_GENERATED["PART"], "STREAM": 0})
    made_up.trials.wrong = "WIDE = 1"
    server.script += [
        answer("#include <fstream>\n" + start, "Reads the answers from where they lie."),
        (429, "", ""),
        answer(good[:300], finish="length"),
        answer(wide),
        (200, "I would rather talk about it.", "stop"),
        answer(good),
    ]
    with Store.open(tmp_path / "s.sqlite") as store:
        rounds = rounds_of(made_up, model(server, candidates=1, repairs=10), store)
        again = rounds_of(made_up, lambda scratch: Replay(rounds), store, start=start, write=False, fresh=True)
    one = rounds[1]
    reasons = [tried.reason for tried in one.tried]
    assert "refused: it includes 'fstream'" in reasons[0]
    assert "cut off" in reasons[1] and reasons[2] == "wrong" and "no fenced block" in reasons[3]
    assert (reasons[4], one.decision) == ("", KEPT)
    assert [tried.repair for tried in one.tried] == [0, 1, 2, 3, 4] and one.tokens == 5000
    assert made_up.file.read_text() == good == rounds[-1].best
    # what a model is told: the rules and the kernel first, then why each failed; never the key
    first, last = server.asked[0], server.asked[-1]
    assert start.splitlines()[0] in first[0]["content"] and "OPFORGE_EXPORT(run, gated)" in first[0]["content"]
    assert len(last) == 9 and "fstream" in last[2]["content"] and "wrong" in last[6]["content"]
    assert KEY not in json.dumps(server.asked)
    assert "{" + "described}" not in first[0]["content"]
    # and the transcript comes to the same verdicts without a model
    assert differences(rounds, again) == ()
    assert [one.decision for one in again if one.stage == ROUND] == [KEPT]


def test_a_budget_of_tokens_ends_it(made_up, server, tmp_path):  # noqa: F811
    start = made_up.file.read_text()
    server.script += [(200, "no", "stop")] * 30
    with Store.open(tmp_path / "s.sqlite") as store:
        rounds = rounds_of(made_up, model(server, candidates=4, repairs=10, tokens=3500), store, rounds=5)
    assert len(server.asked) == 4 and sum(one.tokens for one in rounds) == 4000
    assert "nothing left to try" in rounds[-1].reason and made_up.file.read_text() == start


def test_a_server_that_only_fails_costs_one_candidate_a_round(made_up, server, tmp_path):  # noqa: F811
    with Store.open(tmp_path / "s.sqlite") as store:
        rounds = rounds_of(made_up, model(server, candidates=4, repairs=10), store, rounds=2)
    assert [len(one.tried) for one in rounds if one.stage == ROUND] == [1, 1]
    assert "no answer" in rounds[1].tried[0].reason


def test_answers_are_read_as_they_come():
    assert read_answer("a\n```python\nx\n```\nb\n```cpp\nint y;\n```\n", "cpp") == ("int y;\n", "b")
    assert read_answer("~~~\nint y;\n~~~\n", "cpp") == ("int y;\n", "")
    assert read_answer("```cpp\nint y;", "cpp") == ("", "")
    assert {path.name for path in PROMPTS.iterdir()} == {"task.md", "repair.md"}


def test_feedback_has_the_first_wrong_element_its_replay_and_the_compilers_words(made_up):  # noqa: F811
    case = Case(name="odd", axes={"lead": (3,), "cols": 7}, why="", seed=5)
    wrong = Mismatch(
        case=case, dtype="float32", output="out", index=(1, 2), expected=1.0, actual=2.0, tolerance=1e-6, wrong=3,
        total=21, law=None, cause="rows are swapped", metrics=None, isolation="none",
    )  # fmt: skip
    broken = Broken(case=case, dtype="float32", reason="k.cpp:3: error: 'x' was not declared", isolation="none")
    from opforge.core.evidence.optimization import LOGIC, Tried

    def of(verdict):
        tried = Tried(change="c", kind=LOGIC, diff="", verdict=verdict, ratio=None, reason="r", tokens=0, source="s")
        return feedback(tried, "gated", "float32")

    assert "out[1, 2] is 2.0, expected 1.0" in of(wrong) and "seed 5" in of(wrong) and "rows are swapped" in of(wrong)
    assert "was not declared" in of(broken) and of(None) == "It was not run. r"
    assert of(Pass(checked=(), not_taken=(), isolation="none"))
    assert issubclass(made_up.trials, MadeUp)


def test_after_the_first_pass_a_beam_of_two_by_two_goes_on(made_up, server, tmp_path):  # noqa: F811
    """Two candidates of the best and two of the fastest other that passed, five rounds at most; a replay comes to the
    same verdicts and needs no server.
    """
    start = made_up.file.read_text()
    poor = {name: POOR[name] for name in ("PART", "WIDE", "STREAM", "GRAIN", "SHARE")}

    def at(**better):
        return with_default(start, False, {**poor, **better})

    part = AS_GENERATED["PART"]
    both, all_three = at(PART=part, STREAM=0), at(PART=part, STREAM=0, WIDE=1)
    script = [
        # the first phase: a hostile one, then one that passes, and no third is asked for
        answer("#include <fstream>\n" + start),
        answer(at(PART=part)),
        # the beam begins with the best alone, for nothing else has passed
        answer(at(STREAM=0), "One at a time."),
        answer(both),
        # then of two kernels: the best, and the fastest other
        answer(all_three),
        answer("I give up", "no block"),
        answer(at(WIDE=1)),
        answer(at(GRAIN=2048)),
    ]
    server.script += script
    with Store.open(tmp_path / "s.sqlite") as store:
        rounds = rounds_of(made_up, model(server, candidates=4, repairs=0), store, rounds=3)
        again = rounds_of(
            made_up, lambda scratch: Replay(rounds), store, start=start, write=False, fresh=True, rounds=3
        )
    tried = [one for one in rounds if one.stage == ROUND]
    assert [len(one.tried) for one in tried] == [2, 2, 4]
    assert [one.strategy for one in tried] == ["candidates of a model", BEAM, BEAM]
    assert "2 candidates of each of 1 kernels" in tried[1].hypothesis and "of 2 kernels" in tried[2].hypothesis
    assert [one.best for one in tried] == [at(PART=part), both, all_three] and made_up.file.read_text() == all_three
    standing = [asked[0]["content"] for asked in server.asked]
    assert all("is the best until now" in told for told in standing[:6])
    assert all("is the fastest but for the best" in told for told in standing[6:])
    assert all(both in told for told in standing[4:6]) and all(both not in told for told in standing[6:])
    assert len(server.asked) == len(script) and differences(rounds, again) == ()
    with Store.open(tmp_path / "t.sqlite") as store:
        # a target that is reached at once ends no replay
        soon = {"start": start, "write": False, "fresh": True, "rounds": 1, "target": 0.1, "baseline": ""}
        again = rounds_of(made_up, lambda scratch: Replay(rounds), store, **soon)
    assert differences(rounds, again) == ()


def test_a_beam_has_five_rounds_and_a_budget_of_device_seconds_ends_it(made_up, server, tmp_path):  # noqa: F811
    start = made_up.file.read_text()
    poor = {name: POOR[name] for name in ("PART", "WIDE", "STREAM", "GRAIN", "SHARE")}
    good = with_default(start, False, {**poor, "WIDE": 1})
    server.script += [answer(good)] + [answer(start)] * 40
    with Store.open(tmp_path / "s.sqlite") as store:
        rounds = rounds_of(made_up, model(server, candidates=1, repairs=0), store, rounds=20)
        none = rounds_of(made_up, model(server, device_seconds=0.0), store, rounds=3, fresh=True)
    assert sum(one.strategy == BEAM for one in rounds) == 5 and "nothing left to try" in rounds[-1].reason
    assert [one.stage for one in none] == ["start", "end"]


@pytest.mark.slow
def test_a_scripted_model_ends_with_the_right_kernel_where_everything_is_real(server, tmp_path, monkeypatch):
    """Compiled, verified and timed: one that reads files, one that doubles, a broken one, one that was cut off, a busy
    server, and the one that is right and faster. Replayed, the verdicts are the same.
    """
    folder = tmp_path / "home" / "gated"
    folder.mkdir(parents=True)
    for file, text in files_of(from_formula("gated", FORMULAS["gated"])).items():
        (folder / file).write_text(text)
    kernel = folder / "cpp_rows.cpp"
    good = opened(kernel.read_text())
    start = opened(kernel.read_text(), {**AS_GENERATED, "PART": 1})
    kernel.write_text(start)
    server.script += [
        answer("#include <fstream>\n" + start),
        answer(start.replace("x * scale;", "x + scale;")),
        answer(start.replace("const float part", "const flaot part")),
        (429, "", ""),
        answer(good[:300], finish="length"),
        answer(good),
    ]
    monkeypatch.setenv("OPFORGE_MODEL_URL", f"http://127.0.0.1:{server.server_port}/v1")
    monkeypatch.setenv("OPFORGE_MODEL", "scripted")
    monkeypatch.setenv("OPFORGE_MODEL_KEY", KEY)
    store = str(tmp_path / "s.sqlite")
    words = ["--home", str(tmp_path / "home"), "--store", store, "optimize", "gated", "--dtype", "float32"]
    words += ["--device", "cpu", "--patience", "0", "--engine"]
    asked = ["model", "--rounds", "1", "--baseline", "start", "--target", "9"]
    run = CliRunner().invoke(command_line(["optimize"]), [*words, *asked])
    assert run.exit_code == 0, run.output
    assert kernel.read_text() == good
    with Store.open(store) as kept:
        (one,) = [item for item in kept.rounds(operator="gated") if item.stage == ROUND]
    hostile, wrong, broken, cut, last = one.tried
    assert "refused" in hostile.reason and hostile.verdict is None and "cut off" in cut.reason
    assert isinstance(wrong.verdict, Mismatch) and isinstance(broken.verdict, Broken)
    assert isinstance(last.verdict, Pass) and one.decision == KEPT
    log = (folder / "optimization_log.md").read_text()
    assert "refused: it includes 'fstream'" in log and KEY not in log + run.output
    again = CliRunner().invoke(command_line(["optimize"]), [*words, "replay"])
    assert again.exit_code == 0 and "the same verdicts" in again.output, again.output
