"""What is asked on request: impostors against the bound, PyTorch's contracts, compute-sanitizer, 8-bit figures."""
