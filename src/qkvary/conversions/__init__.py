"""Rewrites of a network into another that computes the same function."""
