"""Reads address 0.

catalogue  F2
guard      process
cases      normal
mode       verify
expect     lost
"""

import ctypes


def run(x):
    ctypes.string_at(0)
    return x
