"""Kernel runtime: kernels on the simulator."""
