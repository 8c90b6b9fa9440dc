"""Adds up blocks of 32 in float16, and their sums in float32.

catalogue  M5
guard      bound
cases      normal
mode       verify
"""


def run(x):
    whole = x.shape[-1] // 32 * 32
    blocks = x[..., :whole].unflatten(-1, (-1, 32)).half().sum(dim=-1).float() if whole else x[..., :0]
    return (blocks.sum(dim=-1) + x[..., whole:].sum(dim=-1)) / x.shape[-1]
