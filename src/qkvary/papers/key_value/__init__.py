"""The paper "Key-Value Transformer" (Borji 2023), whose public code paper 1 uses too."""
