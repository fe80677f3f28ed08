"""Units that run sub-tiles on lanes: threads of a block, panels that they fill together, matrix atoms, software pipelines."""
