"""The paper "Key-Value Transformer" (Borji 2023): paper 2. Paper 1 uses its public code too."""
