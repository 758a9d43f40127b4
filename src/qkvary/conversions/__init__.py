"""Conversions of a network: exact rewrites, and approximate conversions to a smaller cache."""
