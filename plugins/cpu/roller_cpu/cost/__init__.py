"""What the cost model needs beyond the spec."""
