"""Names in Python source that is brought in: what it defines, and what means something in a file of opforge."""

from __future__ import annotations

import ast

SAID = frozenset(
    """
    SUPPORTS SPACE LIMITS DEFAULT LAYOUTS DTYPES FLAGS ANY_RANK ARCH NEEDS INACCURATE INACCURATE_COMPILED NOT_CALLED
    DETERMINISTIC BEST NOT_COMPILED
    """.split()  # noqa: SIM905
)
"""Names by which a file of opforge says something of itself."""


def names_of(tree: ast.Module) -> set[str]:
    """What a file's own level gives names to."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(one.asname or one.name).split(".")[0] for one in node.names}
    return found
