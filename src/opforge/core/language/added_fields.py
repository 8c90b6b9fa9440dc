"""How a noun grows: a field that a later version adds.

    code_sha256: str = field(default="", metadata=ADDED)

Such a field is left out of a noun's JSON while it holds its default. So what was written before keeps its bytes and its
checksum, and is read again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

ADDED: Mapping[str, bool] = MappingProxyType({"added": True})


def is_left_out(field: dataclasses.Field[Any], value: Any) -> bool:
    """Whether a field that was added later holds its default."""
    if not field.metadata.get("added"):
        return False
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return bool(value == default)
