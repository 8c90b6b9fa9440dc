"""`opforge new --ask`: a sentence becomes a definition by a scripted model behind a real HTTP server; answers that are
none are repaired or told, and nothing is written that nobody said yes to.
"""

from __future__ import annotations

import json
import re
import sys

import pytest
import torch
from typer.testing import CliRunner

from opforge.cli.app import command_line
from opforge.core.language.errors import UsageError
from opforge.forge.loop import model_client
from opforge.forge.loop.model_client import Endpoint, ModelError, ask
from opforge.forge.program.evaluate import evaluate
from opforge.forge.read.ask import REPAIRS, NoDefinition, definition_asked, shown
from scripted_model import scripted_model

KEY = "sk-very-secret"
GOOD = """about: a gate
inputs: {x: "*lead cols", scale: cols}
parameters: {slope: 1e-2}
formula: |
  out = leaky_relu(x * scale, slope)
"""


@pytest.fixture
def server(monkeypatch):
    """A scripted model that the environment names."""
    with scripted_model() as made:
        monkeypatch.setenv("OPFORGE_MODEL_URL", f"http://127.0.0.1:{made.server_port}/v1")
        monkeypatch.setenv("OPFORGE_MODEL", "scripted")
        monkeypatch.setenv("OPFORGE_MODEL_KEY", KEY)
        monkeypatch.setattr(model_client, "WAITED", (0.01, 0.01, 0.01))
        yield made


def says(text, finish="stop", status=200, wait=0.0):
    return status, text, finish, wait


def fenced(text):
    return f"Here it is.\n\n```yaml\n{text}```\n"


def asker(server, **more):
    endpoint = Endpoint(url=f"http://127.0.0.1:{server.server_port}/v1", model="scripted", key=KEY, **more)
    return lambda messages: ask(endpoint, messages, sleep=lambda seconds: None)


def new(tmp_path, *words):
    return CliRunner().invoke(command_line(["new"]), ["new", "gate", "--home", str(tmp_path / "home"), *words])


@pytest.mark.parametrize("text", [fenced(GOOD), GOOD, fenced("name: other\n" + GOOD)], ids=["fenced", "bare", "named"])
def test_a_sentence_becomes_a_definition(server, text):
    server.script.append(says(text))
    found = definition_asked("leaky relu of x times a scale", "gate", asker(server))
    assert (found.repairs, found.tokens, found.definition.name) == (0, 1000, "gate")
    x, scale = torch.randn(2, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    got = evaluate(found.definition.program(), {"x": x, "scale": scale}, {"slope": 0.01})["out"]
    torch.testing.assert_close(got, torch.nn.functional.leaky_relu(x * scale, 0.01))
    (question,) = server.asked
    assert "<sentence>\nleaky relu of x times a scale\n</sentence>" in question[0]["content"]
    assert KEY not in json.dumps(question)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (fenced(GOOD.replace("leaky_relu", "leaky")), "'leaky' is no function"),
        (fenced(GOOD + 'outputs: {out: "*lead width"}\n'), "width"),
        (fenced("inputs: {x: [1"), "no YAML"),
        (fenced(GOOD.split("formula")[0]), "formula is missing"),
        ("I cannot help with that.", "is no mapping|no YAML"),
        (fenced("formula: out = __import__('os')\ninputs: {x: cols}\n"), "column"),
        (fenced("a: &a [1, 2]\nb: *a\n"), "alias"),
        (fenced("x: \x1b[31m\n"), "no YAML"),
        (fenced('inputs: {a: "b m k", w: "m k n_of"}\nformula: c = a @ w\n'), "@"),
    ],
    ids=["function", "axis", "truncated", "field", "words", "python", "alias", "control", "family"],
)
def test_an_answer_that_is_no_definition_is_repaired_with_the_errors_own_words(server, bad, message):
    server.script += [says(bad), says(fenced(GOOD))]
    found = definition_asked("a gate", "gate", asker(server))
    assert (found.repairs, found.tokens) == (1, 2000)
    first, second = server.asked
    assert second[: len(first)] == first
    assert [one["role"] for one in second] == ["user", "assistant", "user"]
    assert second[1]["content"] == bad
    assert re.search(message, second[2]["content"])


def test_an_answer_that_was_cut_off_is_not_read(server):
    server.script += [says(fenced(GOOD), finish="length"), says(fenced(GOOD))]
    assert definition_asked("a gate", "gate", asker(server)).repairs == 1
    assert "cut off after 2048 tokens" in server.asked[1][2]["content"]


def test_repairs_end(server):
    server.script += [says("No.")] * 9
    with pytest.raises(NoDefinition, match=r"no definition after 3 repairs: .*--formula"):
        definition_asked("a gate", "gate", asker(server))
    assert len(server.asked) == REPAIRS + 1


@pytest.mark.parametrize(
    ("script", "more", "message"),
    [
        ([says("  ")], {}, "answered with no text"),
        ([says("", status=429)] * 9, {"retries": 2}, "429 Too Many Requests after 3 tries"),
        ([says(fenced(GOOD), wait=0.5)], {"timeout_s": 0.1, "retries": 0}, "did not answer within 0.1 s"),
        ([says("", status=401)], {}, "401"),
    ],
    ids=["empty", "busy", "slow", "key"],
)
def test_a_server_without_an_answer_is_told_and_the_key_is_not(server, script, more, message):
    server.script += script
    with pytest.raises(ModelError, match=message) as caught:
        definition_asked("a gate", "gate", asker(server, **more))
    assert KEY not in str(caught.value)


def test_a_busy_server_is_asked_again(server):
    server.script += [says("", status=429), says(fenced(GOOD))]
    assert definition_asked("a gate", "gate", asker(server)).repairs == 0


def test_nothing_is_written_without_a_yes(server, tmp_path):
    server.script.append(says(fenced(GOOD)))
    answer = new(tmp_path, "--ask", "a gate")
    assert isinstance(answer.exception, UsageError)
    assert answer.exception.exit_code == 2
    assert "Nothing was written: there is no terminal" in str(answer.exception)
    assert "out = leaky_relu(x * scale, slope)" in answer.stdout
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(("said", "code"), [("y\n", 0), ("n\n", 1), ("", 1)])
def test_who_is_asked_on_a_terminal_decides(server, tmp_path, monkeypatch, said, code):
    server.script.append(says(fenced(GOOD)))
    from opforge.cli import new as module

    class Terminal:
        def isatty(self):
            return True

    class Streams:
        stdin = stdout = Terminal()

    monkeypatch.setattr(module, "sys", Streams)
    answer = CliRunner().invoke(
        command_line(["new"]), ["new", "gate", "--home", str(tmp_path / "home"), "--ask", "a gate"], input=said
    )
    assert answer.exit_code == code, answer.output
    assert (tmp_path / "home" / "gate" / "op.py").exists() == (code == 0)
    assert (code == 0) == ("wrote" in answer.stdout)
    assert sys.stdin is not Streams.stdin


def test_scripts_say_yes_and_a_chinese_sentence_gets_a_chinese_document(server, tmp_path):
    server.script.append(says(fenced(GOOD)))
    answer = new(tmp_path, "--ask", "对 x 按列缩放后做 leaky relu", "--yes")
    assert answer.exit_code == 0, answer.output
    assert "2000" not in answer.stdout
    assert "1000 tokens" in answer.stdout
    assert "公式" in (tmp_path / "home" / "gate" / "definition.md").read_text()
    # a taken name costs no question
    asked = len(server.asked)
    again = new(tmp_path, "--ask", "a gate", "--yes")
    assert "exists already" in str(again.exception)
    assert len(server.asked) == asked


def test_words_that_do_not_fit_and_no_model_are_told(server, tmp_path, monkeypatch):
    for words, message in (
        (["--ask", " ", "--yes"], "has no sentence"),
        (["--ask", "x" * 5000, "--yes"], "5000 letters"),
        (["--ask", "a gate", "--formula", "y = x"], "--ask says all"),
        (["--formula", "y = x[a]", "--yes"], "--yes belongs to --ask"),
    ):
        assert message in str(new(tmp_path, *words).exception)
    monkeypatch.delenv("OPFORGE_MODEL_URL")
    assert "OPFORGE_MODEL_URL is not set" in str(new(tmp_path, "--ask", "a gate").exception)
    assert not server.asked
    assert not (tmp_path / "home").exists()


def test_a_models_text_cannot_steer_a_terminal():
    assert shown("a\x1b[2J\r\nb") == "a?[2J?\nb"
