"""Kernels of the host CPU beside other libraries, and how long compiling takes."""
