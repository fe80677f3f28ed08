"""Enumerate, screen, rate, descend: the search over the lattice of aligned tiles."""
