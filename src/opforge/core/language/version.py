"""The version of opforge."""

__version__ = "0.1.0"
