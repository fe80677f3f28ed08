"""Benchmarks for NVIDIA GPUs: what `bench.gpu` must know of them."""
