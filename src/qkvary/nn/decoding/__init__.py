"""Attention of a few new queries over many stored keys: several kernels, the fastest of them."""
