"""2 x, honestly: nothing here is to be caught."""


def run(x):
    return 2 * x
