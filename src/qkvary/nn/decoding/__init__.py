"""Kernels for attention from a few new queries to many stored keys, and the choice of a kernel."""
