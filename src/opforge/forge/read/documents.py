"""Reads the definition document and task books: Markdown with bullets, tables and a formula, English or Chinese.

What is found becomes the fields of a definition (forge.program.definition), which says what is wrong with them. Prose
around them, diagrams and analyses are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opforge.core.definition.tensors import DOMAINS
from opforge.core.language.errors import UsageError
from opforge.forge.program.definition import LONGEST_FILE, Definition, definition_of, from_formula
from opforge.forge.read.document_words import (
    COLUMNS,
    INPUTS,
    LABELS,
    NOTES,
    OUTPUTS,
    ROUNDS,
    WORKLOADS,
    column_of,
    field_of,
    speaks_of,
)

_BULLET = re.compile(r"^\s*[-*+]\s+(?P<key>`[^`]+`|[^:：`|]{1,40}?)\s*[:：]\s*(?P<value>.+?)\s*$")
_HEADING = re.compile(r"^(?P<level>#{1,6})\s+(?P<text>.+?)\s*$")
_RULE = re.compile(r"^[\s|:\-]+$")
_SHORT = {"FP32": "float32", "FP16": "float16", "BF16": "bfloat16"}
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_UNSAID = ("", "-", "—", "variable", "可变", "?")
FORMULA_BLOCKS = ("formula", "公式")


@dataclass
class _Found:
    """What a document says so far, in the fields of a definition."""

    where: str
    fields: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, dict[str, str]] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    constraints: dict[str, str] = field(default_factory=dict)
    workloads: dict[str, dict[str, Any]] = field(default_factory=dict)
    requirements: dict[str, str] = field(default_factory=dict)


def read_document(path: Path, name: str, formula: str | None = None) -> Definition:
    """The Definition that a Markdown file says, for an operator called `name`.

    formula   for a task book that has none
    Raises UsageError that names the line's field and the next step.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}. Give a Markdown file: docs/forge.md shows one.") from error
    return definition_in(text, name, str(path), formula)


def definition_in(text: str, name: str, where: str, formula: str | None = None) -> Definition:
    """The same of a text."""
    if len(text) > LONGEST_FILE:
        raise UsageError(f"{where} has {len(text)} letters; a definition has less than {LONGEST_FILE}. Shorten it.")
    found = _Found(where)
    for heading, kind, content in _blocks(text):
        # analyses and strategies are written for readers: what counts stands in the first chapter, or without chapters
        if kind == "table":
            _table(found, heading, content)
        elif kind == "bullet":
            _bullet(found, heading, *content)
        elif kind == "line" and speaks_of(heading, ROUNDS):
            if (number := re.match(r"\d+", content.strip())) is not None:
                found.fields.setdefault("rounds", int(number[0]))
        elif kind == "fence" and content[0] in FORMULA_BLOCKS:
            found.fields.setdefault("formula", content[1])
    said = found.fields
    if formula is not None:
        if said.get("formula", formula).strip() != formula.strip():
            raise UsageError(f"{where} has a formula, and --formula is another. Give one of them.")
        said["formula"] = formula
    if "formula" not in said:
        raise UsageError(
            f"{where} has no formula, and words alone say no operator. Give it beside: "
            f'opforge new {name} --from {where} --formula "out = x[*lead, cols] + bias[cols]"; or write it into the '
            "file, in a block that begins with ```formula"
        )
    asked = re.sub(r"[\s-]+", "_", str(said.get("name", name)).strip().strip("`").lower())
    if asked != name:
        raise UsageError(f"{where}: the operator is called {asked!r}, and {name!r} was asked for. Let them agree.")
    return _definition(found, name)


def _definition(found: _Found, name: str) -> Definition:
    said = found.fields
    if "dtypes" not in said and (named := [kind for short, kind in _SHORT.items() if short in _accuracy(found)]):
        said["dtypes"] = named
    mapping: dict[str, Any] = {**said, "name": name}
    shapes = {key: one["shape"] for key, one in found.inputs.items() if one.get("shape")}
    if len(shapes) < len(found.inputs) or not found.inputs:
        # shapes that the formula says beside names
        inferred = from_formula(name, said["formula"], {key: float(value) for key, value in found.parameters.items()})
        strange = [key for key in found.inputs if key not in {item.name for item in inferred.inputs}]
        if strange:
            raise UsageError(
                f"{found.where}: the input {strange[0]} is in the table, and the formula does not use it. "
                "Remove it, or use it."
            )
        shapes = {item.name: " ".join(item.axes) for item in inferred.inputs} | shapes
    mapping["inputs"] = {key: {**found.inputs.get(key, {}), "shape": shape} for key, shape in shapes.items()}
    if found.outputs:
        mapping["outputs"] = found.outputs
    for key in ("parameters", "constraints", "workloads", "requirements"):
        if getattr(found, key):
            mapping[key] = getattr(found, key)
    return definition_of(mapping, name, found.where)


def _accuracy(found: _Found) -> str:
    return found.requirements.get("accuracy", "").upper().replace("FLOAT", "FP").replace("BFP16", "BF16")


def _blocks(text: str) -> Iterator[tuple[str, str, Any]]:
    """(heading, kind, content): a "table" as rows of cells, a "bullet" as key and value, a "fence" as language and
    text, a "line".
    """
    lines = iter(text.splitlines())
    heading, table, chapter = "", list[list[str]](), 0
    for line in lines:
        if line.lstrip().startswith("|"):
            if not _RULE.fullmatch(line):
                cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
                table.append([cell.strip().replace("\\|", "|") for cell in cells])
            continue
        if table:
            yield heading, "table", table
            table = []
        if line.lstrip().startswith("```"):
            language = line.strip().strip("`").strip().lower()
            body = []
            for inner in lines:
                if inner.strip() == "```":
                    break
                body.append(inner)
            yield heading, "fence", (language, "\n".join(body))
        elif (match := _HEADING.match(line)) is not None:
            if len(match["level"]) == 2 and (number := re.match(r"(\d+)\.", match["text"])) is not None:
                chapter = int(number[1])
            if chapter > 1:
                return
            heading = match["text"]
        elif (match := _BULLET.match(line)) is not None:
            yield heading, "bullet", (match["key"], match["value"])
        else:
            yield heading, "line", line
    if table:
        yield heading, "table", table


def _bullet(found: _Found, heading: str, key: str, value: str) -> None:
    if key.startswith("`"):
        found.constraints[key.strip("`")] = value.strip().strip("`")
        return
    meant = field_of(key)
    if meant is None:
        if not speaks_of(heading, (*INPUTS, *OUTPUTS)):
            found.requirements[key.strip("* ")] = value
    else:
        _say(found, meant, value)


def _say(found: _Found, meant: str, value: str) -> None:
    """One field; the first time it is said counts, but for words that a bullet and a table both hold."""
    if meant in NOTES:
        found.requirements[meant] = value
    elif meant == "dtypes":
        words = [word.strip("` ") for word in re.split(r"[,，、\s]+", value) if word.strip("` ")]
        found.fields.setdefault("dtypes", [_SHORT.get(word.upper(), word) for word in words])
    elif meant in ("target", "rounds"):
        number = _NUMBER.search(value)
        if number is None:
            raise UsageError(f"{found.where}: {LABELS[meant][0]} is {value!r}. Give a number, e.g. 1.2.")
        found.fields.setdefault(meant, float(number[0]) if meant == "target" else int(float(number[0])))
    elif meant == "formula":
        found.fields.setdefault("formula", value.strip("`"))
    else:
        found.fields.setdefault(meant, value.strip("`") if meant == "name" else value)


def _table(found: _Found, heading: str, table: list[list[str]]) -> None:
    head, *rows = table
    if speaks_of(heading, WORKLOADS):
        for row in rows:
            cells = _cells(head, row)
            found.workloads[cells["name"]] = {
                "axes": _sizes(cells.get("axes", ""), found.where),
                "source": cells.get("source", ""),
                **({"scale": cells["scale"]} if cells.get("scale") else {}),
            }
    elif speaks_of(heading, INPUTS) and head[0].strip("* ").lower() in COLUMNS["name"]:
        for row in rows:
            _input(found, _cells(head, row))
    elif speaks_of(heading, OUTPUTS) and head[0].strip("* ").lower() in COLUMNS["name"]:
        for row in rows:
            cells = _cells(head, row)
            if cells.get("shape", "") not in _UNSAID:
                found.outputs[cells["name"]] = cells["shape"]
    else:
        for row in rows:
            meant = field_of(row[0])
            if meant is not None and len(row) > 1 and row[1] not in _UNSAID:
                _say(found, meant, row[1].strip("* "))


def _cells(head: list[str], row: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for title, cell in zip(head, row, strict=False):
        column = column_of(title)
        if column is not None:
            found.setdefault(column, cell.strip("` ") if column in ("axes", "shape") else cell)
    found["name"] = found.get("name", "").strip("*` ")
    return found


def _input(found: _Found, cells: dict[str, str]) -> None:
    name, limits = cells["name"], cells.get("limits", "")
    if "tensor" not in cells.get("type", "tensor").lower():
        number = _NUMBER.search(limits) or _NUMBER.search(cells.get("about", ""))
        if number is None:
            raise UsageError(
                f"{found.where}: the parameter {name} has no default. Write into its row: 默认值 / default 1.0"
            )
        found.parameters[name] = number[0]
        return
    entry: dict[str, str] = {}
    if cells.get("shape", "") not in _UNSAID:
        entry["shape"] = cells["shape"]
    if cells.get("about"):
        entry["about"] = cells["about"]
    domain = next((word for word in re.findall(r"`(\w+)`", limits) if word in DOMAINS), None)
    if domain is not None:
        entry["domain"] = domain
    elif limits not in _UNSAID:
        found.requirements[name] = limits
    found.inputs[name] = entry


def _sizes(text: str, where: str) -> dict[str, Any]:
    """`lead=8x512, cols=768` as sizes by axis: a list where several, or `()`, are said."""
    sizes: dict[str, Any] = {}
    for part in re.split(r"[,，;；]\s*", text.strip()):
        axis, sign, value = part.partition("=")
        numbers = [] if value.strip() == "()" else value.strip().split("x")
        if not sign or not all(number.strip().isdigit() for number in numbers):
            raise UsageError(f"{where}: {part!r} is no size of an axis. Write: lead=8x512, cols=768")
        several = len(numbers) != 1
        sizes[axis.strip()] = [int(number) for number in numbers] if several else int(numbers[0])
    return sizes
