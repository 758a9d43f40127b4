"""Checkpoints of other programs: one module per format, found by its file name."""
