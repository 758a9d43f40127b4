"""What *is* a network? Frozen configurations and the table of variants; no tensors, no torch."""
