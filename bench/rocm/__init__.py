"""Benchmarks for AMD GPUs: what `bench.gpu` must know of them."""
