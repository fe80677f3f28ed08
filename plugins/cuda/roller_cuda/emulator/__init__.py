"""Emulator: kernels run on the CPU, which checks the order of events and memory accesses."""
