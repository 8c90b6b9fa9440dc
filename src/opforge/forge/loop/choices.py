"""Choices in a kernel's text: the space that generated C++ is given (Triton: triton_choices), and a default that is
written anew.

C++ as `opforge new` writes it has no tunables. `opened` gives it those of opforge/elementwise/chosen.h, with the values
that it had; a TOML comment says the space, so that `opforge tune` searches it as any other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from opforge.core.definition.implementation import Implementation
from opforge.core.language.errors import UsageError
from opforge.forge.loop.triton_choices import opened_triton

Setting = int | str | bool

HEADER = '#include "opforge/elementwise/chosen.h"\n'
SPACE: Mapping[str, tuple[int, ...]] = {
    "PART": (1, 1 << 20),
    "SUMS": (1, 4),
    "WIDE": (0, 1),
    "STREAM": (0, 1),
    "GRAIN": (2048, 32768, 1 << 30),
    "SHARE": (0, 16384),
}
AS_GENERATED: Mapping[str, int] = {"PART": 1 << 20, "SUMS": 4, "WIDE": 1, "STREAM": 0, "GRAIN": 32768, "SHARE": 0}
"""What the plain text does: opforge/elementwise/host.h and rows/host.h."""
POOR: Mapping[str, int] = {"PART": 1, "SUMS": 1, "WIDE": 0, "STREAM": 1, "GRAIN": 1 << 30, "SHARE": 0}
"""Each the worst that somebody may begin with: one thread, an index divided for each element, one sum."""
ABOUT = {
    "PART": "elements of a row that are walked at once",
    "SUMS": "registers of sums side by side",
    "WIDE": "elements become floats in whole registers",
    "STREAM": "results go past the caches",
    "GRAIN": "elements that are worth a thread of their own",
    "SHARE": "elements of a piece that a free thread takes; 0: one range each",
}
_CALLS = {
    "opforge::map(": "opforge::chosen::map<Choices>(",
    "opforge::map_row(": "opforge::chosen::map_row<Choices>(",
    "opforge::sum_map(": "opforge::chosen::sum_map<Choices>(",
    "opforge::for_each_row(": "opforge::chosen::for_each_row<Choices>(",
}
_ELEMENTS = re.compile(r"opforge::parallel_for\(0, (?P<count>[^,]+), opforge::kElementwiseGrain, ")
_PART = re.compile(r"const int64_t n = (?P<least>std::min\([^;]+\));")
_NATIVE = re.compile(r"/\* opforge\b.*?\*/", re.DOTALL)
_PYTHON = re.compile(r"^DEFAULT = \{.*?\}$", re.MULTILINE | re.DOTALL)


def generated_cpp(text: str) -> bool:
    """Whether a text is C++ that `opforge new` wrote and nobody gave choices yet."""
    return "OPFORGE_EXPORT(run, " in text and HEADER not in text and any(call in text for call in _CALLS)


def has_rules(implementation: Implementation) -> bool:
    """Whether the engine of rules can change an implementation: it has a space, or is generated C++ or Triton."""
    if implementation.space:
        return True
    text = implementation.source.read_text(encoding="utf-8")
    return (
        opened_triton(text) is not None
        if implementation.backend == "triton"
        else (implementation.backend == "cpp" and generated_cpp(text))
    )


def with_choices(backend: str, text: str) -> str | None:
    """A generated kernel's text with choices, at what it did before; None where it has them, or is none of those.

    Raises UsageError where a choice would take a name that a kernel in C++ has.
    """
    if backend == "cpp" and generated_cpp(text):
        return opened(text)
    return opened_triton(text) if backend == "triton" else None


def opened(text: str, values: Mapping[str, int] | None = None) -> str:
    """The text of a generated C++ kernel with choices, at `values` where they are given and apply, else as it was.

    Raises UsageError for a text that has none of the calls that choices stand behind.
    """
    if not generated_cpp(text):
        raise UsageError(
            "This is no C++ kernel as `opforge new` writes it. Rules change those, and the defaults of any kernel with "
            "a SPACE; a language model changes any: opforge optimize NAME --engine model"
        )
    if taken := next((name for name in SPACE if re.search(rf"\b{name}\b", text)), None):
        raise UsageError(f"The kernel has a name {taken}, which a choice would take. Rename it in the formula.")
    names = ["WIDE", "STREAM", "GRAIN", "SHARE"]
    made = text
    for call, chosen in _CALLS.items():
        if call == "opforge::sum_map(" and call in made:
            names.insert(0, "SUMS")
        made = made.replace(call, chosen)
    made, parts = _ELEMENTS.subn(r"opforge::chosen::elements<Choices>(\g<count>, ", made)
    if parts:
        made, _ = _PART.subn(r"const int64_t n = opforge::chosen::part<Choices>(\g<least>);", made)
        names.insert(0, "PART")
    default = {name: (values or {}).get(name, AS_GENERATED[name]) for name in names}
    head, brace, rest = made.partition("\nnamespace {\n")
    lines = [f"  static constexpr int64_t k{name.title()} = {name};  // {ABOUT[name]}" for name in names]
    struct = (
        "\n\n// What is tuned: the values stand in the space above.\nstruct Choices {\n" + "\n".join(lines) + "\n};\n"
    )
    comment, *includes = re.split(r"(?=^#include)", head, maxsplit=1, flags=re.MULTILINE)
    space = "\n".join(f"{name} = {list(SPACE[name])}" for name in names)
    said = f"/* opforge\n[space]\n{space}\n[default]\n{_toml(default)}\n[limits]\n"
    said += 'one_thread_takes_all = "GRAIN < 1000000000 or SHARE == 0"\n*/\n'
    return f"{comment}{said}{''.join(includes)}{HEADER}{brace.rstrip()}{struct}{rest}"


def _toml(default: Mapping[str, Setting]) -> str:
    return "\n".join(f"{name} = {_literal(value)}" for name, value in default.items())


def _literal(value: Setting) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


def with_default(text: str, python: bool, default: Mapping[str, Setting]) -> str:
    """The text with another default of its space. Raises UsageError where it says none that can be written anew."""
    if python:
        literal = "DEFAULT = {" + ", ".join(f'"{name}": {value!r}' for name, value in default.items()) + "}"
        made, count = _PYTHON.subn(literal.replace("\\", r"\\"), text, count=1)
        if count:
            return made
        raise UsageError("The file has no literal DEFAULT = {...} to write anew. Write it out there.")
    block = _NATIVE.search(text)
    if block is not None:
        said = block[0]
        made, count = re.subn(
            r"^\[default\]\n(?:[A-Za-z_]\w* *=.*\n)*", f"[default]\n{_toml(default)}\n", said, flags=re.MULTILINE
        )
        if not count:
            inline = "{" + ", ".join(f"{name} = {_literal(value)}" for name, value in default.items()) + "}"
            made, count = re.subn(r"^default *= *\{.*\}$", f"default = {inline}", said, flags=re.MULTILINE)
        if count:
            return text.replace(said, made, 1)
    raise UsageError("The file has no default in its /* opforge … */ comment to write anew. Write it out there.")
