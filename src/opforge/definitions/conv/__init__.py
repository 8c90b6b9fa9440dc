"""Convolution's mathematics: what a tap reads, references, bounds, cases and layers of published models."""
