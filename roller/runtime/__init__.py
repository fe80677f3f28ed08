"""Running kernels: artifacts, arrays in host and GPU memory, and the worker process."""
