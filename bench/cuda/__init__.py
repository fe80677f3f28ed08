"""Benchmarks for NVIDIA GPUs: kernels are built where roller is, and run where there is only CUDA and PyTorch."""
