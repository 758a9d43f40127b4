"""Attention of a few new queries over many stored keys: several kernels, and a choice."""
