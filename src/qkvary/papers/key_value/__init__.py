"""Paper 2, "Key-Value Transformer" (Borji 2023). Paper 1 uses the same public code."""
