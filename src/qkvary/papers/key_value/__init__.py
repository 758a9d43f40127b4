"""Paper 2, "Key-Value Transformer" (Borji 2023). Its public code is used by paper 1 too."""
