"""Kernels that run on the CPU instead, with the order of events and what they access checked."""
