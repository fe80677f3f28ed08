"""Units that run sub-tiles on lanes: threads of a block, cooperatively filled panels, matrix atoms, software pipelines."""
