"""The process that compiles a group of points: reads a request, prints `code PLACE HASH STACK` for each point that
compiled (STACK: bytes, or -).
"""

from __future__ import annotations

import json
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

from opforge.backends import Call, backend
from opforge.backends.tilelang_lang import TileLang
from opforge.core.implementation import Config
from opforge.registry import load
from opforge.tuning.codes import CompiledCode, stack_of


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
    digest, stack = sha256(), None
    if isinstance(compiler, TileLang):
        digest.update(compiler.code(implementation, call).encode())
    else:
        with tempfile.TemporaryDirectory(prefix="opforge-code-") as folder:
            for artefact in compiler.compile_offline(implementation, call, request["target"], Path(folder)):
                digest.update(artefact.path.read_bytes())
                # the same instructions on another grid, or with other shared memory, are another point
                digest.update(repr((artefact.threads, sorted((artefact.facts or {}).items()))).encode())
                stack = (
                    max((size for size in (stack, stack_of(artefact.path)) if size is not None), default=None)
                    if artefact.kind == "cubin"
                    else stack
                )
    return CompiledCode(sha256=digest.hexdigest(), stack_bytes=stack)


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
        print(f"code {place} {code.sha256} {'-' if code.stack_bytes is None else code.stack_bytes}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
