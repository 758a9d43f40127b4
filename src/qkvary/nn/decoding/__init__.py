"""Attention from a few new queries to many stored keys: kernels, and the choice between them."""
