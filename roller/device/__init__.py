"""Devices: the contract with their plugins, their discovery, and the chip that a caller names."""
