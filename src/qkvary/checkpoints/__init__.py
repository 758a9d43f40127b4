"""Stores networks and training states, and reads and writes formats of other programs."""
