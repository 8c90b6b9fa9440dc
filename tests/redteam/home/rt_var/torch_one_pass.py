"""E[x^2] - E[x]^2.

catalogue  B3
guard      cases_offset
cases      normal offset
mode       verify
"""


def run(x):
    return (x * x).mean(dim=-1) - x.mean(dim=-1) ** 2
