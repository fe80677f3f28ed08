"""Machine model: the constants of a chip, and the cycles of its parts."""
