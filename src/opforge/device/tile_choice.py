"""Which tile a product of matrices is computed in, by its shape and the device: what kernels of several languages have
in common.
"""

from collections.abc import Iterable, Mapping

Tile = tuple[int, int]

WEIGHTS: Mapping[Tile, float] = {(128, 256): 1.0, (128, 128): 1.1, (128, 64): 1.3, (64, 128): 1.25, (64, 64): 1.7}
"""What an element of a tile (rows, columns) costs beside one of 128 x 256: a smaller tile uses what it loads less
often.
"""
WEIGHTS_OF_ROLES: Mapping[Tile, float] = {(128, 256): 1.0, (128, 128): 1.05, (128, 64): 1.3}
"""Likewise where a warp does nothing but load, and two warpgroups multiply."""
ALONE = 0.15
"""Of a tile's work, what its first loads and the last store take, which overlap nothing."""


def least_work(
    m: int, n: int, programs: int, tiles: Iterable[Tile], batch: int = 1, weights: Mapping[Tile, float] = WEIGHTS
) -> Tile:
    """Of these tiles, the one with which the busiest of `programs` multiprocessors computes least, one tile after the
    other.

    Few large tiles leave most of a device idle, and one tile too many makes all of it wait for a second round.
    """

    def cost(tile: Tile) -> float:
        rounds = -(-batch * -(-m // tile[0]) * -(-n // tile[1]) // programs)
        return (rounds * weights[tile] + ALONE) * tile[0] * tile[1]

    return min(tiles, key=cost)
