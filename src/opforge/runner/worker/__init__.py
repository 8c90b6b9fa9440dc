"""What happens in a worker: tensors are made, a kernel is bound, run and sampled."""
