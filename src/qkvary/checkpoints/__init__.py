"""Stored networks and training states, and formats of other programs."""
