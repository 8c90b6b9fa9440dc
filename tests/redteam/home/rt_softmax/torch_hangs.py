"""Never returns.

catalogue  F1
guard      process
cases      normal
mode       verify
expect     lost
"""


def run(x):
    while True:
        pass
