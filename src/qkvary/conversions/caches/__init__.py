"""Conversions of a trained network into one with a smaller cache; its outputs change."""
