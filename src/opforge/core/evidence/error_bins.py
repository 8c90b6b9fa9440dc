"""The bins that errors are counted in: of equal width in the logarithm of their size."""

LOWEST, HIGHEST, PER_DECADE = -9, 2, 4
"""The decades of |error| that are told apart, and bins of each; the first bin has all below, the last all above."""
