"""Computes the parameters, MACs and cache bytes of networks, from ``arch`` alone; no torch."""
