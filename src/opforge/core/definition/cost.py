"""What a call must do at the least: operations, and bytes moved."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one call must do at the least: floating-point operations, bytes read, bytes written.

    bytes_saved   what a sequence of simpler operators, each of which writes its result and reads the one before, would
                  move besides
    """

    flops: int
    bytes_read: int
    bytes_written: int
    bytes_saved: int = 0

    @property
    def bytes(self) -> int:
        """Bytes moved, read and written together."""
        return self.bytes_read + self.bytes_written

    @property
    def intensity(self) -> float:
        """FLOP per byte moved: the abscissa of the roofline."""
        return self.flops / self.bytes if self.bytes else 0.0
