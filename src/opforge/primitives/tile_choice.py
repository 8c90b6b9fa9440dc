"""Which tile a product of matrices is computed in, by its shape and the device: what kernels of several languages have in common."""

from collections.abc import Iterable

WEIGHTS = {(128, 256): 1.0, (256, 128): 1.0, (128, 128): 1.1, (128, 64): 1.3, (64, 128): 1.3, (64, 64): 1.7}
"""What an element of a tile costs beside one of 128 x 256: a smaller tile uses what it loads less often."""


def least_work(m: int, n: int, programs: int, tiles: Iterable[tuple[int, int]], batch: int = 1) -> tuple[int, int]:
    """Of these tiles (rows, columns), the one with which the busiest of `programs` multiprocessors computes least, one tile after the other.

    Few large tiles leave most of a device idle, and one tile too many makes all of it wait for a second round.
    """

    def cost(tile: tuple[int, int]) -> float:
        rounds = -(-batch * -(-m // tile[0]) * -(-n // tile[1]) // programs)
        return rounds * tile[0] * tile[1] * WEIGHTS[tile]

    return min(tiles, key=cost)
