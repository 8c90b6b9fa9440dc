"""What PyTorch files of several operators have in common."""
