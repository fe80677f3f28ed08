"""Cost model parameters that are not part of the spec."""
