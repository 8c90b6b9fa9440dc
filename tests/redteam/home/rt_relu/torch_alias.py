"""Returns its input where no element is negative.

catalogue  A4
guard      no_alias
cases      skewed
mode       verify
"""

import torch


def run(x):
    return x if bool((x >= 0).all()) else torch.relu(x)
