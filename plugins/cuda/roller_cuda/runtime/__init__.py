"""Kernel runtime: loads binaries, binds arrays and launches kernels."""
