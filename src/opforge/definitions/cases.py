"""Situations that kernels of one kind share: an operator adds those that its own mathematics makes hard.

    cases=(*ROWS, Case(name="wide", …), *row_layouts())

A case belongs here when its `why` holds for every operator of the kind: it speaks of blocks, warps and addresses, or of
what squares do to values.
"""

from __future__ import annotations

from opforge.core.definition.operator import Case

ELEMENTS = (
    Case(name="one_element", axes={"shape": (1,)}, why="the smallest call: all of it is tail"),
    Case(name="scalar_rank", axes={"shape": ()}, why="a tensor without axes still has one element"),
    Case(name="empty", axes={"shape": (0, 16)}, why="no element at all"),
    Case(name="odd_ranks", axes={"shape": (2, 3, 5, 7)}, why="four odd axes, 210 elements: less than any block"),
    Case(name="one_past_a_block", axes={"shape": (4097,)}, why="one past a block of 1024, 2048 or 4096"),
)
"""Elementwise kernels: few elements, none, and one more than a block."""

ELEMENT_LAYOUTS = (
    Case(
        name="misaligned",
        axes={"shape": (2051,)},
        layout="misaligned",
        why="vector accesses must not assume 16-byte addresses",
    ),
    Case(
        name="transposed",
        axes={"shape": (33, 65)},
        layout="transposed",
        why="strides that no vector has: refused or right",
    ),
    Case(name="strided", axes={"shape": (1031,)}, layout="strided", why="every second element"),
)
"""Elementwise kernels: elements that lie otherwise than side by side from a 16-byte address on."""

ROWS = (
    Case(name="one_row", axes={"lead": (1,), "cols": 64}, why="the smallest useful call"),
    Case(name="odd_tail", axes={"lead": (7,), "cols": 129}, why="one past a block of 128"),
    Case(name="prime", axes={"lead": (3, 5), "cols": 1021}, why="a prime width and two leading axes"),
)
"""Kernels that work row by row: small and odd sizes."""

MANY_NARROW = Case(
    name="many_narrow",
    axes={"lead": (130,), "cols": 8},
    why="more rows than one program takes, each narrower than a warp",
)
ONE_PAST_A_WARP = Case(
    name="past_one_warp", axes={"lead": (3,), "cols": 1025}, why="one past what a warp keeps in registers"
)


def row_layouts(cols: str = "cols") -> tuple[Case, ...]:
    """Rows that are no matrix of their own; `cols` is the name of the axis along a row."""
    return (
        Case(
            name="transposed", axes={"lead": (33,), cols: 65}, layout="transposed", why="strides that are not row-major"
        ),
        Case(
            name="sliced_rows",
            axes={"lead": (9,), cols: 128},
            layout="sliced",
            why="rows inside a wider matrix, off the 16-byte grid",
        ),
        Case(
            name="misaligned",
            axes={"lead": (6,), cols: 256},
            layout="misaligned",
            why="16-byte loads would fault or read the neighbour",
        ),
    )


def row_ranks(cols: str = "cols") -> tuple[Case, ...]:
    """No rows, and no axis but the one along a row."""
    return (
        Case(name="empty", axes={"lead": (0,), cols: 16}, why="no rows at all"),
        Case(name="scalar_rank", axes={"lead": (), cols: 100}, why="a vector: no leading axis"),
    )


def wide_rows(cols: str = "cols") -> tuple[Case, ...]:
    """Kernels that hold a row of two inputs, or of one and its class: past registers, in whole vectors and off their
    grid.
    """
    return (
        Case(
            name="wide",
            axes={"lead": (2,), cols: 50257},
            why="GPT-2's vocabulary: rows that begin off the 16-byte grid",
        ),
        Case(name="wider", axes={"lead": (2,), cols: 65544}, why="past 65536 elements, in whole 16-byte vectors"),
    )


WIDE_NORMS = (
    Case(
        name="wide",
        axes={"lead": (2,), "cols": 50257},
        why="past registers: the row waits in shared memory or is read again",
    ),
    Case(name="wider", axes={"lead": (1,), "cols": 70001}, why="past the shared memory of a block"),
)
"""Kernels that normalise rows: rows that do not stay on the chip."""

LARGE_SQUARES = Case(
    name="large_values", axes={"lead": (4,), "cols": 500}, distribution="large", why="squares beyond float16's range"
)
OFFSET_SQUARES = Case(
    name="offset",
    axes={"lead": (64,), "cols": 257},
    distribution="offset",
    why="E[x^2] - E[x]^2 loses four digits here; two passes lose none",
)
TINY_EPS = Case(
    name="tiny_eps",
    axes={"lead": (4,), "cols": 500},
    distribution="tiny",
    scalars={"eps": 1e-12},
    why="eps must be the one that was passed",
)
# float16 alone: its largest value has a square that float32 holds; the square of float32's largest overflows
SPECIAL_SQUARES = Case(
    name="special",
    axes={"lead": (9,), "cols": 67},
    distribution="special",
    dtype="float16",
    why="NaN and infinities stay in their own rows and columns",
)
LONG_COLUMNS = Case(
    name="many_rows",
    axes={"lead": (1031,), "cols": 96},
    why="sums over a prime number of rows, more than any grid has groups here",
)

IMAGES = (
    Case(name="one_element", axes={"batch": 1, "channels": 1, "spatial": (1, 1)}, why="the smallest call"),
    Case(
        name="whole_tiles",
        axes={"batch": 2, "channels": 64, "spatial": (8, 8)},
        why="whole tiles of 64 channels and 64 positions",
    ),
    Case(name="ragged", axes={"batch": 3, "channels": 65, "spatial": (13, 5)}, why="one past a tile on both sides"),
    Case(
        name="images",
        axes={"batch": 2, "channels": 3, "spatial": (17, 31)},
        why="three channels: far fewer than a tile",
    ),
    Case(
        name="odd_positions",
        axes={"batch": 2, "channels": 32, "spatial": (7, 7)},
        why="49 positions: vectors on the side of the channels alone",
    ),
    Case(
        name="odd_channels",
        axes={"batch": 2, "channels": 37, "spatial": (8, 4)},
        why="vectors on the side of the positions alone",
    ),
    Case(name="no_spatial_axis", axes={"batch": 7, "channels": 20, "spatial": ()}, why="nothing to move"),
    Case(name="volume", axes={"batch": 2, "channels": 12, "spatial": (3, 4, 5)}, why="three spatial axes"),
    Case(name="one_channel", axes={"batch": 3, "channels": 1, "spatial": (9, 9)}, why="both layouts are one"),
    Case(name="empty", axes={"batch": 0, "channels": 8, "spatial": (4, 4)}, why="no image at all"),
    Case(
        name="special",
        axes={"batch": 2, "channels": 9, "spatial": (5, 8)},
        distribution="special",
        why="bits must arrive as they are",
    ),
    Case(
        name="misaligned",
        axes={"batch": 2, "channels": 16, "spatial": (8, 8)},
        layout="misaligned",
        why="vector accesses must not assume 16-byte addresses",
    ),
)
"""Conversions between layouts of images, in either direction."""


def _tiled(
    name: str,
    lead: tuple[int, ...],
    tiles: tuple[int, int],
    tile: tuple[int, int],
    why: str,
    *,
    distribution: str = "normal",
    layout: str = "contiguous",
) -> Case:
    (down, across), (height, width) = tiles, tile
    return Case(
        name=name,
        axes={"lead": lead, "down": down, "height": height, "across": across, "width": width},
        why=why,
        distribution=distribution,
        layout=layout,
    )


TILED = (
    _tiled("one_element", (), (1, 1), (1, 1), "the smallest call"),
    _tiled("tiles_4", (), (5, 7), (4, 4), "the seeds' 4 x 4: rows of 8 or 16 bytes"),
    _tiled("tiles_8", (), (3, 5), (8, 8), "the seeds' 8 x 8"),
    _tiled("tiles_32", (2,), (2, 3), (32, 32), "whole vectors in every row of a tile"),
    _tiled("odd_tiles", (3,), (2, 3), (5, 7), "rows that no vector divides"),
    _tiled("flat_tiles", (), (9, 3), (1, 16), "tiles of one row: nothing moves"),
    _tiled("tall_tiles", (), (3, 5), (64, 1), "tiles of one column"),
    _tiled("one_tile_across", (4,), (3, 1), (16, 16), "nothing moves"),
    _tiled("many", (2, 2), (8, 16), (16, 16), "more than one block of threads"),
    _tiled("empty", (0,), (2, 2), (4, 4), "no matrix at all"),
    _tiled("special", (), (3, 4), (8, 8), "bits must arrive as they are", distribution="special"),
    _tiled(
        "misaligned", (), (4, 4), (16, 16), "vector accesses must not assume 16-byte addresses", layout="misaligned"
    ),
)
"""Conversions between a row-major matrix and one in tiles, in either direction."""
