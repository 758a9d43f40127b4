"""Measure decoding: memory and speed per variant, beside transformers and without a cache."""

from qkvary.cli._benchmarks import load_command

command = load_command("decoding.run", "decode")
