"""Plans: the mapping of a stage's program to tiles."""
