"""The red team: planted cheats, hostile kernels, honest ones and planted bugs, against the verifier. `python -m
tests.redteam`.
"""
