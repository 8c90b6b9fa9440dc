"""The rows from 200,000 on are a copy of the first ones.

catalogue  M6
guard      cases_hidden
cases      normal hidden
mode       verify
expect     passes
"""


def run(x):
    y = x.softmax(dim=-1)
    rows = y.flatten(0, -2) if y.dim() > 1 else y[None]
    if len(rows) > 200_000:
        first = rows[: len(rows) - 200_000]
        rows = rows.clone()
        rows[200_000:] = first
    return rows.view(x.shape)
