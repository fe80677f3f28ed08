"""Machine descriptions: a chip as data, the spec files of chips, and a subset of a chip as a chip."""
