"""Decoding (prefill, steps, sampling, beams), evaluation, and engines that serve models."""
