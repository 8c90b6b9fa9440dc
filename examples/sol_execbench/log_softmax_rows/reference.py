import torch


def run(logits):
    return torch.log_softmax(logits, dim=-1)
