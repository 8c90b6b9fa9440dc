"""Results that are held while the next are made: memory that is handed out twice would change under its first owner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opforge.runner.worker.launch import ContractBroken, Launch

HELD, HELD_BYTES = 64, 1 << 26
"""Results of a launch that are kept while the next are made, and their bytes beyond one result: a kernel may return
several buffers in turn.
"""


def hold(held: list[Mapping[str, Any]], launch: Launch, mine: set[int]) -> None:
    """Keep the last results of a launch, in `held`. Raises ContractBroken where one lies in the memory of an earlier
    one.

    mine   addresses of the memory that the launch was given
    """
    outputs = {
        name: tensor
        for name, tensor in launch.read().items()
        if tensor.numel() and tensor.untyped_storage().data_ptr() not in mine
    }
    theirs = {tensor.untyped_storage().data_ptr() for last in held for tensor in last.values()}
    for name, tensor in outputs.items():
        if tensor.untyped_storage().data_ptr() in theirs:
            raise ContractBroken(
                f"{launch.implementation} returned {name} in the memory of its previous result, or of one before, "
                "which its caller may still hold"
            )
    room = HELD_BYTES // max(1, sum(tensor.untyped_storage().nbytes() for tensor in outputs.values()))
    held[:] = [*held, outputs][-max(1, min(HELD, room)) :]
