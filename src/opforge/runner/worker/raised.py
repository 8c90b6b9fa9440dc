"""What a kernel raised, in words: the error, the line of its file where it was met, and the next step."""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType

from opforge.backends.module_loading import KERNEL_MODULE

NOT_AS_CALLED = re.compile(
    r"\(\) (takes|missing|got an unexpected keyword argument|got multiple values)|Expected \d+ arguments"
)
"""How Python and TVM-FFI say that a function has other parameters than it was given."""


def in_words(error: BaseException, source: Path | None) -> str:
    """One sentence for what a verdict says of an exception.

    source   the implementation's file, where it is known
    """
    place = _line_of_a_kernel(error)
    while type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
        error = error.__cause__  # Triton's interpreter wraps what the kernel raised
    said = f"{type(error).__name__}: {error}{_unread(error, source)}"
    if place := _line_of_a_kernel(error) or place:
        return f"{said}; see {place}"
    if source is not None and isinstance(error, TypeError) and NOT_AS_CALLED.search(str(error)):
        return (
            f"{said}; {_called(source)}, and {_short(source)} has it otherwise. Let them agree: opforge "
            f"check-interface {source.parent}"
        )
    # opforge's own words say themselves what to do
    if source is None or type(error).__module__.startswith("opforge."):
        return said
    return f"{said}; see {_short(source)}"


def _unread(error: BaseException, source: Path | None) -> str:
    """Why a file is not there for a kernel, where it asked for one; else nothing."""
    if isinstance(error, ModuleNotFoundError) and source is not None:
        return (
            ", in no package that is installed; a module beside the kernel's file is not read: write it into the file"
        )
    name = getattr(error, "filename", None)
    if not isinstance(error, PermissionError | FileNotFoundError) or source is None or not isinstance(name, str):
        return ""
    if isinstance(error, FileNotFoundError) and not Path(name).is_relative_to(source.parent):
        return ""
    return (
        ". A worker reads its toolchain and the files that the kernel's hash covers, and nothing beside them: write "
        "what it needs into the kernel's file"
    )


def _called(source: Path) -> str:
    if source.suffix != ".py":
        return "`run` is given inputs, outputs, then parameters"
    return {
        "torch": "`run` is given inputs, then parameters",
        "library": "`run` is given inputs, then parameters",
        "tilelang": "`program` is given dtype, target, parameters and tunables by name",
    }.get(source.stem.partition("_")[0], "`launch` is given inputs, outputs, then parameters and tunables by name")


def _line_of_a_kernel(error: BaseException) -> str:
    """FOLDER/FILE:LINE of the innermost step in a kernel's file; empty where none was in one."""
    place, step = "", error.__traceback__
    while step is not None:
        if str(step.tb_frame.f_globals.get("__name__", "")).startswith(KERNEL_MODULE):
            place = f"{_short(Path(_file(step)))}:{step.tb_lineno}"
        step = step.tb_next
    return place


def _file(step: TracebackType) -> str:
    return str(step.tb_frame.f_globals.get("__file__", step.tb_frame.f_code.co_filename))


def _short(path: Path) -> str:
    """A record is no place for a machine's folders."""
    return f"{path.parent.name}/{path.name}"
