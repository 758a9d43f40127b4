"""Conversions of a network into an equivalent one, which computes the same function."""
