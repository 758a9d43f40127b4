"""Measure what a quantised cache costs a checkpoint: divergence and perplexity by bit width."""

from qkvary.api.benchmarks import load_verb

bench_quantized = load_verb("decoding.quantized", "bench_quantized")
