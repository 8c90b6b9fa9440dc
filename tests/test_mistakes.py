"""Typical mistakes of a first day: each message names the place, and the next step. The table is tests/mistakes.py."""

from __future__ import annotations

import dataclasses
import io
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest
import torch

import mistakes
from opforge.backends import native
from opforge.cli.app import main
from opforge.core.language.errors import UsageError
from opforge.forge import create
from opforge.registry import load
from opforge.report.record_text import describe
from opforge.verify import CaseCache, consult, verify
from opforge.verify.cases.hidden import EXACT


@pytest.fixture
def squares(tmp_path):
    create(load(), "squares", tmp_path)
    return tmp_path


def verdict_of(host, home, name):
    """The verdict on one small case of a file of the user's."""
    registry = load([home])
    operator = registry.operator("squares")
    bench = CaseCache(registry=registry, operator=operator, host=host, device="cpu")
    try:
        item = registry.implementation("squares", name)
        return verify(bench, item, "float32", cases=operator.cases[:1], effort=EXACT)
    finally:
        bench.close()


def test_the_compilers_first_error_comes_before_its_command(squares, host):
    """The command of twenty flags was all that a narrow terminal showed."""
    file = squares / "squares" / "cpp_flat.cpp"
    file.write_text(file.read_text().replace("#include", "int wrong = no_such_name;\n#include", 1))
    reason = verdict_of(host, squares, "cpp_flat").reason
    first, second = reason.splitlines()[:2]
    assert "cpp_flat.cpp" in first and "error" in first and "no_such_name" in first
    assert second == "Run this to see it whole:"


def test_a_reference_that_fails_names_its_case(squares):
    operator = load([squares]).operator("squares")

    def reference(x):
        raise ValueError("bad luck")

    broken = dataclasses.replace(operator, reference=reference)
    words = r"reference of squares raises ValueError: bad luck \(case odd_tail: shape=\(7, 129\)\)\. Correct op\.py"
    with pytest.raises(UsageError, match=words):
        consult(broken, broken.cases[0], "float32", {"x": torch.ones(1)})


def test_a_folder_without_a_definition_is_named(squares):
    """The operator was said to be unknown, with all others that are."""
    (squares / "cubes").mkdir()
    (squares / "cubes" / "triton_flat.py").write_text("")
    with pytest.raises(UsageError, match=rf"{squares / 'cubes'} has no op\.py.*opforge show softmax --source"):
        load([squares]).operator("cubes")


def test_a_misspelt_field_gets_the_nearest_one_and_its_line(squares):
    file = squares / "squares" / "op.py"
    file.write_text(file.read_text().replace("flops=", "flop=", 1))
    with pytest.raises(UsageError, match=r"unexpected keyword argument 'flop' \(line \d+\)\. Did you mean 'flops'\?"):
        load([squares]).operator("squares")


@pytest.mark.parametrize(
    ("complaint", "first"),
    [
        ("a.cpp: In function 'f':\na.cpp:3:5: error: expected ';'\n", "a.cpp:3:5: error: expected ';'"),
        (
            'k.cu(7): error: identifier "y" is undefined\n1 error detected',
            'k.cu(7): error: identifier "y" is undefined',
        ),
        ("ld: a.o: undefined reference to `g'\ncollect2: error: ld returned 1", "ld: a.o: undefined reference to `g'"),
        ("", "it said nothing"),
    ],
)
def test_the_first_error_of_a_compiler(complaint, first):
    assert native.first_error(complaint) == first


def command(words, store):
    """The exit code and what was said, of a command line in this process."""
    said, code = io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()), redirect_stderr(said):
        patch.setenv("OPFORGE_STORE", str(store))
        patch.setattr(sys, "argv", ["opforge", *words])
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return code, said.getvalue()


def edited(home, mistake):
    file = home / "squares" / mistake.file
    text = file.read_text()
    assert text.count(mistake.old) >= 1, f"{mistake.file} no longer has {mistake.old!r}"
    text = text.replace(mistake.old, mistake.new, 1)
    for noun in ("Constraint", "Scalar"):
        if f"({noun}(" in mistake.new:
            text = text.replace("import Case, ", f"import Case, {noun}, ", 1)
    file.write_text(text)


def holds(mistake, message, **places):
    for words in (mistake.where, mistake.then):
        for name, value in places.items():
            words = words.replace(f"{{{name}}}", str(value))
        assert words in message, f"{mistake.what}: {words!r} is not in: {message}"
    assert "Traceback" not in message


def named(table):
    return pytest.mark.parametrize("mistake", table, ids=[mistake.what.replace(" ", "_") for mistake in table])


@named((*mistakes.DEFINITIONS, *mistakes.STATEMENTS))
def test_a_slip_in_a_file_is_told_when_it_is_read(squares, tmp_path, mistake):
    edited(squares, mistake)
    code, message = command(["--home", str(squares), "show", "squares"], tmp_path / "s.sqlite")
    assert code == mistake.ends, message
    holds(mistake, message, home=squares)
    assert message.count("\n") == 1, "one sentence, on a line"


@named(mistakes.KERNELS)
def test_a_slip_in_a_kernel_is_told_by_its_verdict(squares, host, mistake):
    edited(squares, mistake)
    verdict = verdict_of(host, squares, mistake.file.partition(".")[0])
    assert type(verdict).__name__ == mistake.ends, verdict
    holds(mistake, describe(verdict))


@named((*mistakes.COMMANDS, *mistakes.FORMULAS))
def test_a_slip_in_a_command_is_told(squares, tmp_path, monkeypatch, mistake):
    place = tmp_path / "place"
    (place / "empty").mkdir(parents=True)
    (place / "bad.sqlite").write_text("no database, and long enough to be looked at as one" * 40)
    monkeypatch.chdir(place)
    for option, file in (("--formula", None), ("--from", place / "definition.yaml")):
        before, found, rest = mistake.words.partition(f" {option} ")
        if found:
            if file is not None:
                file.write_text(rest)
            words = [*before.format(tmp=place).split(), option, str(file or rest)]
            break
    else:
        words = mistake.words.format(tmp=place, home=squares).split()
    code, message = command(words, tmp_path / "s.sqlite")
    assert code == mistake.code, message
    holds(mistake, " ".join(message.split()), home=squares)


@named(mistakes.CALLS)
def test_a_slip_in_a_call_is_told(mistake):
    from opforge import ops

    names = {"ops": ops, "torch": torch, "x": torch.ones(4, 8), "w": torch.ones(8)}
    with pytest.raises(Exception) as raised:
        eval(mistake.call, names)
    assert type(raised.value).__name__ == mistake.raises, raised.value
    holds(mistake, str(raised.value))


def test_nearly_all_messages_say_what_to_do_next():
    """68 of 70 is what was asked for; each mistake stands in the table once."""
    assert len({mistake.what for mistake in mistakes.ALL}) >= 70
    actionable = [mistake for mistake in mistakes.ALL if mistake.where and mistake.then]
    assert len(actionable) / len(mistakes.ALL) >= 68 / 70
