"""Tries its own kernel, which never works, and falls back to torch.matmul.

catalogue  E7
guard      trace
cases      normal
mode       verify
"""


def own(a, b, y):
    raise NotImplementedError


def launch(a, b, y):
    try:
        own(a, b, y)
    except NotImplementedError:
        y.copy_(a @ b)
