"""Old names of modules, for op.py files that were written when these lay elsewhere: a user's folder, and a revision
that is put aside for a comparison.

An import of an old name gives the module that has its content today, with a DeprecationWarning that says what to write.
Nothing is asked of this table until an import fails everywhere else.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    # importlib.abc takes a third of the time of `opforge list`
    Loader = object

_DRAWERS = {
    "definition": """
        call_form device dtypes gradient implementation own_shapes own_words pipeline shape_classes shapes situations
        tensors
    """,
    "evidence": """
        comparison diagnosis error_bins inspection optimization paired_times record statistics timing timing_terms
        verdict
    """,
    "language": "added_fields errors expr fields plugins printed spans units user_folders",
}
_ATTENTION = ("cases", "decode", "dropout", "fp8", "gradients", "sides", "varlen")

MOVED = {
    "opforge.core.rounding": "opforge.definitions.bounds.sums",
    "opforge.core.rounding_rows": "opforge.definitions.bounds.rows",
    "opforge.core.rounding_scans": "opforge.definitions.bounds.scans",
    "opforge.core.rounding_formulas": "opforge.definitions.bounds.formulas",
    "opforge.core.fp8_weights": "opforge.definitions.bounds.fp8",
    **{f"opforge.core.{name}": f"opforge.definitions.{name}" for name in ("activation", "cases", "precision")},
    **{f"opforge.core.{name}": f"opforge.definitions.{name}" for name in ("tolerances", "workloads")},
    "opforge.core.attention": "opforge.definitions.attention.attention",
    **{f"opforge.core.attention_{name}": f"opforge.definitions.attention.{name}" for name in _ATTENTION},
    **{
        f"opforge.core.{name}": f"opforge.core.{drawer}.{name}"
        for drawer, names in _DRAWERS.items()
        for name in names.split()
    },
}
"""Old name → name."""


class _Forwarder(Loader):
    """Finds a module by its old name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MOVED:
            return None
        warnings.warn(f"{fullname} is {MOVED[fullname]} now. Import that.", DeprecationWarning, stacklevel=2)
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(MOVED[spec.name])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # the import system has written the old name's spec into the one module that there is
        module.__spec__ = getattr(module.__spec__, "loader_state", module.__spec__)


def forward_old_names() -> None:
    """Let imports of old names be answered, after everything else that answers imports."""
    if not any(isinstance(finder, _Forwarder) for finder in sys.meta_path):
        sys.meta_path.append(_Forwarder())
