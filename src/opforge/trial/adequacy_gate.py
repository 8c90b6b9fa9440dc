"""No operator is judged by a bound that accepts what is no answer.

`bench`, `verify_all`, `compare` and `opforge.testing` ask this before the first kernel of an operator runs. The answer
depends on op.py, on the code of opforge that it imports and on the code that checks alone, so a good one is kept in the
cache folder under their hash; a bad one is never kept. The registry itself does not ask: listing operators needs no
toolchain, and asking needs torch.
"""

from __future__ import annotations

import contextlib
from hashlib import sha256
from pathlib import Path

from opforge.backends.shared_code import modules_of
from opforge.core.definition.operator import Operator
from opforge.core.language.user_folders import cache_folder
from opforge.runner.worker import inputs
from opforge.verify.extra import adequacy
from opforge.verify.judging import elements
from opforge.verify.oracle import expectation


def ensure_adequate(operator: Operator) -> None:
    """Raises verify.adequacy.Inadequate when an impostor gets through the operator's tolerance; costs about a second
    once.
    """
    mark = _mark(operator)
    if mark is not None and mark.is_file():
        return
    adequacy.require(operator)
    if mark is not None:
        # a cache that cannot be written costs a second next time, and nothing else
        with contextlib.suppress(OSError):
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()


def _mark(operator: Operator) -> Path | None:
    """The file that says this very definition was found adequate by this very code; None for an operator without a
    file.
    """
    if operator.folder is None or not (operator.folder / "op.py").is_file():
        return None
    digest = sha256()
    for path in decisive(operator.folder / "op.py"):
        digest.update(path.read_bytes())
    return cache_folder() / "adequacy" / f"{digest.hexdigest()}.adequate"


def decisive(definition: Path) -> list[Path]:
    """The files that decide whether a definition is adequate: itself, what it imports of opforge (magnitudes that
    operators share), and the code that checks.
    """
    return [
        definition,
        *(path for _, path in sorted(modules_of(definition).items())),
        *(Path(str(module.__file__)) for module in (adequacy, elements, expectation, inputs)),
    ]
