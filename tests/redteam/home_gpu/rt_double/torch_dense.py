"""Reads memory as if it had no gaps.

catalogue  B5
guard      cases_strided
cases      normal strided
mode       verify
"""


def run(x):
    return 2 * x.as_strided(x.shape, (1,))
