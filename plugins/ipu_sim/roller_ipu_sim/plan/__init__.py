"""How a stage's program lies over tiles."""
