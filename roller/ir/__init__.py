"""Operators as the engine sees them: scalar trees, stages, loop nests, and the passes over them."""
