"""Units that run sub-tiles one after another with vectors: accumulators, packed panels, copies with halos, epilogues."""
