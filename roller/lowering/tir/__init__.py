"""Helpers that build TIR: tile starts, addresses, loads, scalar trees, and arithmetic that TVM does not fold."""
