"""Runs the Python files that define nouns, which are a guest's: what one raises is told with its line and a remedy."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, TracebackType

from opforge.core.definition import operator, pipeline
from opforge.core.language.errors import OpforgeError, UsageError
from opforge.core.language.fields import EXAMPLES
from opforge.registry.definition_reach import check_reach, is_trusted
from opforge.registry.statement_checks import get_close_matches


def load_module(kind: str, name: str, path: Path, *, guest: bool = True) -> ModuleType:
    """The module of a definition's file. Raises UsageError with what it raised, and where.

    guest   its text is read first: what reaches for more than a definition needs is refused (definition_reach)
    """
    if guest and not is_trusted(path):
        check_reach(path, path.read_text(encoding="utf-8", errors="replace"))
    # the folder is part of the name: two homes may each hold a definition of one name
    module_name = f"opforge_{kind}_{name}_{zlib.crc32(str(path.parent).encode()):08x}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except OpforgeError as error:
        raise UsageError(f"{path}{_line(error, path)}: {error}") from error
    except (Exception, SystemExit) as error:  # whatever a guest's code raises is reported with its file
        line = _line(error, path)
        raise UsageError(
            f"{path} cannot be loaded: {type(error).__name__}: {error}{f' (line {line[1:]})' if line else ''}. "
            f"{_remedy(error)}"
        ) from error
    return module


def _line(error: BaseException, path: Path) -> str:
    """ ":LINE" of a definition's own file where an error was raised; nothing where it was raised elsewhere."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f":{error.lineno}"
    lines = [step.tb_lineno for step in _steps(error.__traceback__) if step.tb_frame.f_code.co_filename == str(path)]
    return f":{lines[-1]}" if lines else ""


def _steps(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


RENAMED = {"factors": "compute_dtype"}
"""Fields of nouns that had another name: a definition that says it is told today's."""


def _remedy(error: BaseException) -> str:
    """What to do about an error that a definition raised: for a noun's field that there is not, the nearest ones."""
    called = re.match(r"(\w+)\.__init__\(\) (got an unexpected keyword argument '(\w+)'|missing)", str(error))
    noun = {**vars(operator), **vars(pipeline)}.get(called[1]) if called else None
    if called is None or not dataclasses.is_dataclass(noun):
        return "Mend it there."
    names = [item.name for item in dataclasses.fields(noun) if item.init]
    if called[3] is None:
        examples = EXAMPLES.get(called[1], {})
        missing = [name for name in re.findall(r"'(\w+)'", str(error)) if name in examples]
        return f"Add it, for example: {', '.join(f'{name}={examples[name]}' for name in missing)}."
    near = [RENAMED[called[3]]] if called[3] in RENAMED else get_close_matches(called[3], names, n=1)
    hint = f"Did you mean {near[0]!r}? " if near else "Choose one that there is: "
    return f"{hint}{called[1]} has {', '.join(names)}."
