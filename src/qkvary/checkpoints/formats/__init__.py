"""Checkpoints of other programs: one module per format, named after the format."""
