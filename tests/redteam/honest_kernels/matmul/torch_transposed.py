"""The product of the transposes, transposed."""


def run(a, b, precision):
    return (b.float().T @ a.float().T).T.contiguous().to(a.dtype)
