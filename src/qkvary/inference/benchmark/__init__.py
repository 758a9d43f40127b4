"""The decode benchmark: cases, measurements, and the conclusions drawn from them."""
