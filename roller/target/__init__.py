"""What a chip is: its description as data, where descriptions lie, and parts of a chip as a chip."""
