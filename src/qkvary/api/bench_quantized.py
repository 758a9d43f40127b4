"""Measure what a rounded cache costs a checkpoint: divergence and perplexity against bits."""

from qkvary.api.benchmarks import load_verb

bench_quantized = load_verb("decoding.quantized", "bench_quantized")
