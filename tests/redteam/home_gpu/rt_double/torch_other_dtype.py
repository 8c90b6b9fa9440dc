"""Returns float64.

catalogue  A2
guard      exact_shape
cases      normal
mode       verify
"""


def run(x):
    return 2 * x.double()
