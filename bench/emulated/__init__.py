"""Kernels of GPUs on the emulators, beside the reference."""
