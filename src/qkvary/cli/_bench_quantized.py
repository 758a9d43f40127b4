"""Measure what a rounded cache costs a checkpoint: divergence and perplexity against bits."""

from qkvary.cli._benchmarks import load_command

command = load_command("decoding.quantized", "quantized")
