"""Benchmarks on GPUs, whoever made them: kernels are built where roller is, and run where there are only PyTorch and a driver."""
