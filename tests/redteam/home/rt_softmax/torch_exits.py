"""Writes nothing and leaves with status 0.

catalogue  F2
guard      process
cases      normal
mode       verify
expect     lost
"""

import os


def run(x):
    os._exit(0)
