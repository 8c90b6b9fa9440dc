"""The mean of every second element.

catalogue  A9
guard      bound
cases      wide
mode       verify
"""


def run(x):
    return x[..., ::2].mean(dim=-1).contiguous()
