"""Products of bfloat16 behind a float32 interface.

catalogue  B1
guard      bound
cases      positive
mode       verify
"""


def run(a, b):
    return (a.bfloat16() @ b.bfloat16()).float()
