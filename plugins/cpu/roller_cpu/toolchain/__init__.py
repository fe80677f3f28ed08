"""Toolchain: builds binaries from source text, and extracts facts from binaries."""
