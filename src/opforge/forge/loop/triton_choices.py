"""Choices in Triton that `opforge new` wrote: the grid of tiles, and the rows and warps of programs that take whole
rows. The text is given a space of its own, at what it did before (device/triton/chosen.py).
"""

from __future__ import annotations

import re

_TILES = "from opforge.device.triton.tiles import LIMITS as LIMITS, SPACE as SPACE, tile_of, tiles_over\n"
_ROWS = "from opforge.device.triton.norms import load_float, normalised_rows, store_float\n"
_CHOSEN = "from opforge.device.triton.chosen import {}\n"
_LAUNCH = re.compile(r"^def launch\((?P<given>[^)]*?),?\s*\):", re.MULTILINE)
_TILE_DEFAULT = re.compile(r'^DEFAULT = \{"TILE": (?P<tile>\d+), "num_warps": (?P<warps>\d+)\}\n', re.MULTILINE)
_BEFORE_KERNEL = re.compile(r"\n\n\n@triton\.jit\n")
TILE_SPACE = """SPACE = {{"TILE": (1024, 2048, 4096, 8192), "GRID": (1, 2, 3), "num_warps": (2, 4, 8)}}
LIMITS = {{
    "every_thread_has_a_vector": "TILE * itemsize >= 16 * 32 * num_warps",
    "fits_registers": "TILE <= 32 * 32 * num_warps",
    "a_second_axis_ends_at_65535": "GRID != 2 or {columns} <= 65535 * TILE",
}}
DEFAULT = {{"TILE": {tile}, "GRID": 1, "num_warps": {warps}}}
"""
ROW_SPACE = """# 0: as the shape says
SPACE = {{"ROWS": (0, 1, 2, 4, 8, 16), "WARPS": (0, 2, 4, 8, 16)}}
LIMITS = {{
    "several_rows_fit_registers": "ROWS <= 1 or ROWS * next_pow2({columns}) <= 16384",
    "every_warp_has_elements": "WARPS == 0 or 32 * WARPS <= max(ROWS, 1) * next_pow2({columns})",
}}
DEFAULT = {{"ROWS": 0, "WARPS": 0}}
"""


def opened_triton(text: str) -> str | None:
    """The text of a kernel that `opforge new` wrote over tiles or whole rows, with choices, at what it did before.

    None where it is none of those, has its choices already, or was changed so that they do not fit: a name of theirs is
    taken, SUPPORTS no longer says how wide a row may be, or DEFAULT is another one.
    """
    if any(re.search(rf"\b{name}\b", text) for name in ("GRID", "WARPS")):
        return None
    if _TILES in text and (columns := _supported(text, "columns_in_32_bits", " < 2147483648")):
        return _tiles(text, columns) if _TILE_DEFAULT.search(text) else None
    if _ROWS in text and (columns := _supported(text, "row_on_chip", " <= ")):
        return _rows(text, columns)
    return None


def _tiles(text: str, columns: str) -> str:
    made = text.replace(_TILES, _CHOSEN.format("tile_in_grid, tiles_in_grid"))
    made = _TILE_DEFAULT.sub(lambda found: TILE_SPACE.format(columns=columns, **found.groupdict()), made, count=1)
    made = re.sub(r"\btile_of\((.*), COLS\)", r"tile_in_grid(\1, COLS, GRID)", made)
    made = made.replace("COLS: tl.constexpr", "COLS: tl.constexpr, GRID: tl.constexpr")
    made = re.sub(r"\btiles_over\((.*), TILE\)", r"tiles_in_grid(\1, TILE, GRID)", made)
    return _LAUNCH.sub(lambda found: f"def launch({found['given'].replace('TILE', 'TILE, GRID')}):", made)


def _rows(text: str, columns: str) -> str:
    made = text.replace(_ROWS, _CHOSEN.format("chosen_rows") + _ROWS.replace("normalised_rows, ", ""))
    made = _BEFORE_KERNEL.sub(lambda found: f"\n{ROW_SPACE.format(columns=columns)}{found[0][1:]}", made, count=1)
    made = made.replace("normalised_rows(rows, cols)", "chosen_rows(rows, cols, ROWS, WARPS)")

    def launch(found: re.Match[str]) -> str:
        star = "" if "*" in found["given"] else "*, "
        return f"def launch({found['given']}, {star}ROWS, WARPS):"

    return _LAUNCH.sub(launch, made)


def _supported(text: str, key: str, behind: str) -> str:
    """The expression of sizes that a SUPPORTS of generated code begins with; "" where it has none."""
    found = re.search(rf'"{key}": "(.+?){re.escape(behind)}', text)
    return found[1] if found else ""
