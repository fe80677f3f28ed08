"""Where data lie in memories of banks and lines, and which lanes access them together."""
