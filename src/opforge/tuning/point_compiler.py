"""The process that compiles a group of points: reads a request, prints `code PLACE HASH STACK USE` for each point that
compiled (STACK and USE in JSON: bytes or null, a CodeUse or null).
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from opforge.backends import Artefact, Call, backend
from opforge.backends.tilelang_lang import TileLang
from opforge.core.definition.implementation import Config
from opforge.registry import load
from opforge.tuning.code_prior import CodeUse
from opforge.tuning.codes import CompiledCode, most_of


def code_of(request: dict[str, Any], config: Config) -> CompiledCode:
    """What the compiler makes of one point. Raises whatever the compiler raises."""
    registry = load([Path(home) for home in request["homes"]])
    operator = registry.operator(request["operator"])
    implementation = registry.implementation(request["operator"], request["implementation"])
    axes = {name: tuple(value) if isinstance(value, list) else value for name, value in request["axes"].items()}
    call = Call(
        operator=operator,
        axes=axes,
        dtype=request["dtype"],
        scalars=request["scalars"],
        config=config,
        device=request["device"],
    )
    compiler = backend(implementation.backend)
    digest, stack, use = sha256(), None, None
    if isinstance(compiler, TileLang):
        digest.update(compiler.code(implementation, call).encode())
    else:
        with tempfile.TemporaryDirectory(prefix="opforge-code-") as folder:
            for artefact in compiler.compile_offline(implementation, call, request["target"], Path(folder)):
                digest.update(artefact.path.read_bytes())
                # the same instructions on another grid, or with other shared memory, are another point
                digest.update(repr((artefact.threads, sorted((artefact.facts or {}).items()))).encode())
                if artefact.kind == "cubin" and (most := most_of(artefact.path)):
                    stack = max(most["stack_bytes"], stack or 0)
                    use = _with(use, artefact, most)
    return CompiledCode(sha256=digest.hexdigest(), stack_bytes=stack, use=use)


def _with(use: CodeUse | None, artefact: Artefact, most: dict[str, int]) -> CodeUse | None:
    """What the kernels until now and this one use, of each the most; None where shared memory is not known."""
    facts = artefact.facts or {}
    if "shared_bytes" not in facts or not artefact.threads:
        return use
    mine = {
        "registers": most.get("registers", 0),
        "stack_bytes": most["stack_bytes"],
        "shared_bytes": int(facts["shared_bytes"]),
        "threads": artefact.threads,
        "blocks": math.prod(int(size) for size in str(facts.get("grid", "0")).split("x")),
    }
    return CodeUse(**{name: max(size, getattr(use, name, 0)) for name, size in mine.items()})


def main(asked: str) -> None:
    """Answer the request in the file `asked`, a line for each point, as they are known."""
    request = json.loads(Path(asked).read_text(encoding="utf-8"))
    for place, values in enumerate(request["configs"]):
        try:
            code = code_of(request, Config(tuple((name, value) for name, value in values)))
        # the boundary to compilers: a point without a code is tried, and says itself why it fails
        except Exception as error:  # noqa: BLE001
            print(f"no code for {place}: {type(error).__name__}: {error}"[:500], file=sys.stderr, flush=True)
            continue
        stack, use = json.dumps(code.stack_bytes), json.dumps(asdict(code.use) if code.use else None)
        print(f"code {place} {code.sha256} {stack} {use}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
