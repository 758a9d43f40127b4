"""Attention of a few new queries to many stored keys: several kernels, and their choice."""
