"""The command line: one module per verb. Doors speak; nothing below them prints."""
