"""Decoding: prefill and steps, sampling, beams, evaluation and the decode benchmark."""
