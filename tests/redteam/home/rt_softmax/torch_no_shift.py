"""exp without the shift by the maximum.

catalogue  B3
guard      cases_large
cases      normal large
mode       verify
"""


def run(x):
    e = x.exp()
    return e / e.sum(dim=-1, keepdim=True)
