"""Loads examples. Each source of examples has one file; only this package downloads."""
