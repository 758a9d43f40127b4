"""Measure decoding: memory and speed per variant, compared with transformers and no cache."""

from qkvary.cli._benchmarks import load_command

command = load_command("decoding.run", "decode")
