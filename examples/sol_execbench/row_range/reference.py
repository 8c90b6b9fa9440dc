def run(x):
    return x.amax(-1) - x.amin(-1)
