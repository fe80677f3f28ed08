"""Binaries from source text, and what binaries say of themselves."""
