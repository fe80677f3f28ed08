"""The kernel cache: kernels that were compiled before, in memory and on disk."""
