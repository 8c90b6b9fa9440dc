"""The largest number where the reference says infinity.

catalogue  A7
guard      pattern
cases      special
mode       verify
"""


def run(x):
    return x.mean(dim=-1).nan_to_num(nan=float("nan"))
