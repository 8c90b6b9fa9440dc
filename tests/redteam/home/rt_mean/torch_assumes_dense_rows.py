"""Takes the row stride for the width.

catalogue  B5
guard      cases_sliced
cases      normal sliced
mode       verify
"""


def run(x):
    return x.as_strided(x.shape, (x.shape[-1], 1)).mean(dim=-1)
