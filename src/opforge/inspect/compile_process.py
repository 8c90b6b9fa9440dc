"""The process that compiles: reads a request, leaves artefacts in its folder and an answer beside them, judges
nothing.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from opforge.backends import Call, backend
from opforge.core.definition.implementation import Config
from opforge.core.language.errors import OpforgeError
from opforge.registry import load


def compiled(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The artefacts of one offline compilation, as plain data."""
    registry = load([Path(home) for home in request["homes"]])
    implementation = registry.implementation(request["operator"], request["implementation"])
    if "source" in request:
        # of another revision, with what operators share there: the definition is today's
        implementation = dataclasses.replace(implementation, source=Path(request["source"]))
    operator = registry.operator(request["operator"])
    call = Call(
        operator=operator,
        axes={name: tuple(value) if isinstance(value, list) else value for name, value in request["axes"].items()},
        dtype=request["dtype"],
        scalars=operator.scalar_values(request["scalars"]),
        config=Config(tuple((name, value) for name, value in request["config"])),
        device=request["device"],
    )
    artefacts = backend(implementation.backend).compile_offline(
        implementation, call, request["target"], Path(request["folder"])
    )
    return [{**dataclasses.asdict(artefact), "path": str(artefact.path)} for artefact in artefacts]


def main(asked: str, answered: str) -> None:
    """Answer the request in the file `asked` with the file `answered`."""
    try:
        answer: dict[str, Any] = {"artefacts": compiled(json.loads(Path(asked).read_text(encoding="utf-8")))}
    except OpforgeError as error:
        answer = {"error": type(error).__name__, "reason": str(error)}
    # the boundary to compilers: whatever they raise becomes the parent's error
    except Exception as error:  # noqa: BLE001
        answer = {"error": type(error).__name__, "reason": f"{type(error).__name__}: {str(error)[-2000:]}"}
    Path(answered).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:3])
