"""A grid with more blocks than a device has in one dimension: the driver says "invalid argument" and no more."""

from __future__ import annotations

import pytest

from opforge.backends import grid_limits


def narrow(self):
    """A kernel's stand-in: what Triton's `run` holds where the driver refuses the launch."""


class Launcher:
    """Triton's JITFunction, as far as it is looked at."""

    fn = narrow

    def run(self, *, grid):
        raise RuntimeError("Triton Error [CUDA]: invalid argument")


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        (
            (7, 65_536),
            "narrow is launched on 65,536 blocks in its grid's second dimension, where a device allows 65,535",
        ),
        ((1, 1, 70_000), "narrow is launched on 70,000 blocks in its grid's third dimension"),
        ((2**31, 1, 1), "narrow is launched on 2,147,483,648 blocks in its grid's first dimension"),
    ],
)
def test_a_refused_launch_says_which_dimension_is_too_large(grid, said):
    """It was booked as a broken contract, in the driver's two words."""
    with pytest.raises(RuntimeError) as met:
        Launcher().run(grid=grid)
    found = grid_limits.behind(met.value)
    assert str(found).startswith(said) and "SUPPORTS" in str(found)


def test_another_invalid_argument_stays_what_it_is():
    """A grid that a device allows is not to blame, nor is another error."""
    with pytest.raises(RuntimeError) as met:
        Launcher().run(grid=(2**31 - 1, 65_535, 65_535))
    assert grid_limits.behind(met.value) is None
    assert grid_limits.behind(ValueError("out of memory")) is None
