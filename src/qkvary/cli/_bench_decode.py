"""Measure decoding: memory and speed per variant, beside transformers and without a cache."""

from qkvary.cli.bench import load_command

command = load_command("decoding.run")
