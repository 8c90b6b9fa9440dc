"""Computes in its input and returns a copy.

catalogue  A5
guard      inputs
cases      normal
mode       verify
"""


def run(x):
    return x.mul_(2).clone()
