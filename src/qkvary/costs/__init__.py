"""What does a network *cost*? Parameters, MACs and cache bytes, from ``arch`` alone; no torch."""
