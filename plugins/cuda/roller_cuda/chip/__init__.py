"""Which chip kernels are for: what the system says of the one that is attached, and the known chip that it is most like."""
