"""AscendC by TileLang's target for Ascend: the text, lowered where no NPU and no CANN is."""

from __future__ import annotations

from typing import Any


def lowered(program: Any) -> str:
    """The AscendC text of a program in TileLang's dialect for Ascend (tilelang.ascend.language). Raises RuntimeError
    where this TileLang has no such target.
    """
    import tilelang  # noqa: F401  its libraries know the target
    from tilelang.engine.lower import lower
    from tvm.target import Target

    try:
        target = Target("ascend")
    except ValueError as error:
        raise RuntimeError("This TileLang has no target for Ascend: pip install 'tilelang>=0.1.15'") from error
    with target:
        return str(lower(program, target=target).kernel_source)
