"""Measure decoding memory and speed per variant, compared with the transformers library."""

from qkvary.api.benchmarks import load_verb

bench_decode = load_verb("decoding.run", "bench_decode")
