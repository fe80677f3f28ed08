"""Devices: the contract with their plugins, how they are found, and the chip that a caller means."""
