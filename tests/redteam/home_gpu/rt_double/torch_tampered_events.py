"""Puts an event in the place of torch.Event whose time is a twentieth of what passed.

catalogue  D4
guard      snapshot
lowered    audit_understated audit_conserved audit_undivided
cases      normal
mode       time
"""

import torch

REAL = torch.Event


class Event:
    def __init__(self, **options):
        self.real = REAL(**options)

    def record(self):
        self.real.record()

    def query(self):
        return self.real.query()

    def elapsed_time(self, other):
        return self.real.elapsed_time(other.real) / 20


def run(x):
    torch.Event = Event
    torch.cuda._sleep(100_000)
    return 2 * x
