"""float16 behind a float32 interface.

catalogue  B1
guard      bound
cases      normal
mode       verify
"""


def run(a, b):
    return (a.half() @ b.half()).float()
