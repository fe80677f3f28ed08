"""The layout of data in memories of banks and lines, and the lanes that access them together."""
