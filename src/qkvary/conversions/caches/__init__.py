"""Conversions of a trained network to a smaller cache; they change the network's outputs."""
