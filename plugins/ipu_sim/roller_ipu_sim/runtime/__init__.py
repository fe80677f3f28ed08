"""Kernels that run on the simulator."""
