"""Kernels that run: binaries loaded, arrays bound, work started."""
