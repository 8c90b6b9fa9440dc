"""A name and a comment that a word ban would reject."""

import torch


# no second stream is needed here: one pass streams the row
def run(x):
    stream = x.float()
    return torch.softmax(stream, dim=-1).to(x.dtype)
