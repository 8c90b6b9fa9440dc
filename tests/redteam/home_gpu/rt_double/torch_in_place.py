"""Returns its input, doubled in place.

catalogue  A4
guard      no_alias
lowered    inputs new_memory
cases      normal
mode       verify
"""


def run(x):
    return x.mul_(2)
