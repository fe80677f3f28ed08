"""Enumerate, screen, rate, descend: the search over the whole lattice of aligned tiles, for units whose data caches hold."""
