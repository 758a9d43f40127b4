"""Describes networks: frozen configurations and the table of variants; no tensors, no torch."""
