"""Measure decoding memory and speed per variant, against transformers and uncached decoding."""

from qkvary.api.benchmarks import load_verb

bench_decode = load_verb("decoding.run", "bench_decode")
