import torch


def run(gate, value):
    return gate * torch.sigmoid(gate) * value
