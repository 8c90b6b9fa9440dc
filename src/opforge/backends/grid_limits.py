"""How many blocks a CUDA grid may have in each dimension (CUDA C++ Programming Guide, from compute capability 3.0 on),
and what is said of a launch that asks for more: the driver calls it "invalid argument".
"""

from __future__ import annotations

from collections.abc import Sequence

from opforge.core.language.errors import EnvironmentLacks

MOST_BLOCKS = (2**31 - 1, 65_535, 65_535)
NAMES = ("first", "second", "third")


class GridTooLarge(EnvironmentLacks):
    """A launch asks for more blocks than a device has in one dimension."""


def too_large(grid: Sequence[int], kernel: str) -> GridTooLarge | None:
    """The error for a kernel launched on this grid; None where a device allows it."""
    for place, (count, most) in enumerate(zip(grid, MOST_BLOCKS, strict=False)):
        if count > most:
            return GridTooLarge(
                f"{kernel} is launched on {count:,} blocks in its grid's {NAMES[place]} dimension, where a device "
                f"allows {most:,}. Put that axis first (it may have {MOST_BLOCKS[0]:,}), or let SUPPORTS name sizes "
                f'that fit, e.g. SUPPORTS = {{"grid": "rows <= {most}"}}'
            )
    return None


def behind(error: BaseException) -> GridTooLarge | None:
    """The same for what a launch has raised: its grid is found where Triton launches."""
    if "invalid argument" not in str(error).lower():
        return None
    step = error.__traceback__
    while step is not None:
        names = step.tb_frame.f_locals
        grid, function = names.get("grid"), names.get("self")
        if step.tb_frame.f_code.co_name == "run" and function is not None and grid is not None:
            bound = names.get("bound_args", {})
            grid = grid(bound) if callable(grid) else grid
            found = too_large(tuple(grid), getattr(getattr(function, "fn", None), "__name__", "its kernel"))
            if found is not None:
                return found
        step = step.tb_next
    return None
