"""What runs: artifacts, arrays of the host and of GPUs, and the worker process."""
