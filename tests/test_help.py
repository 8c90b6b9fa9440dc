"""Every help text, as terminals of two widths show it."""

import itertools
import re

import pytest
import typer
from typer.testing import CliRunner

from opforge.cli.app import VERBS, actions_of, command_line, flowing


@pytest.fixture(scope="module")
def front():
    return command_line()


def help_text(front, words, columns):
    answer = CliRunner().invoke(front, [*words, "--help"], env={"COLUMNS": str(columns), "TERM": "dumb"})
    assert answer.exit_code == 0, answer.output
    return answer.output.splitlines()


def prose(lines):
    """The blocks of text between the usage and the first box, each a list of lines."""
    text = lines[next(place for place, line in enumerate(lines) if "Usage:" in line) + 1 :]
    text = text[: next(place for place, line in enumerate(text) if line.startswith("╭"))]
    blocks = [[]]
    for line in text:
        if line.strip():
            blocks[-1].append(line.strip())
        else:
            blocks.append([])
    return [block for block in blocks if block]


def cells(lines):
    """The last column of every box, each entry a list of lines, and the width of the columns."""
    found, box = [], []
    for line in lines:
        if line.startswith("│"):
            box.append(line[2:-2])
        elif line.startswith("╰"):
            # a line that goes on has nothing before the last column
            begins = [len(row) - len(row.lstrip()) for row in box if row.startswith(" " * 8) and row.strip()]
            if begins:
                start = max(set(begins), key=begins.count)
                for row in box:
                    if row[:start].strip() or row[start:].lstrip().startswith("["):
                        found.append((len(row) - start, []))
                    found[-1][1].append(row[start:].strip())
            box = []
    return [(width, block) for width, block in found if len(block) > 1]


def broken_early(block, width):
    """The lines that end although the next line's first word had room."""
    pairs = itertools.pairwise(block)
    return [line for line, after in pairs if len(line) + 1 + len(after.split()[0]) <= width]


@pytest.mark.parametrize("columns", [80, 120])
def test_a_help_text_is_broken_only_where_the_width_needs_it(front, columns):
    """Docstrings are wrapped for an editor: passed on as they are, they end lines in the middle of sentences."""
    wrong = {}
    actions = ((verb, action) for verb in VERBS for action in actions_of(verb))
    for words in [(), *((verb,) for verb in VERBS), *actions]:
        lines = help_text(front, words, columns)
        assert max(map(len, lines)) <= columns, words
        early = [line for block in prose(lines) for line in broken_early(block, columns - 2)]
        early += [line for width, block in cells(lines) for line in broken_early(block, width)]
        if early:
            wrong[words] = early
    assert wrong == {}


def test_the_test_above_notices_a_docstring_as_it_was_typed(front):
    """A planted one: its second line has room for the third's words."""
    planted = typer.Typer()
    planted.command(help="What it does.\n\nSome words that\nend early, at no\nwidth's wish.")(lambda: None)
    lines = help_text(planted, (), 80)
    assert [line for block in prose(lines) for line in broken_early(block, 78)] == [
        "Some words that",
        "end early, at no",
    ]
    assert flowing("Some words that\n    end early.\n\n    More.") == "Some words that end early.\n\nMore."


def test_a_box_is_read_as_it_is_shown(front):
    """The reader of boxes finds the entries that go on: else the test of them could not fail."""
    found = cells(help_text(front, ("tune",), 80))
    assert len(found) > 15
    assert any(re.match("Torch device type", block[0]) for _, block in found)
