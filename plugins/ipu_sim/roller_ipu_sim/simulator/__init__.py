"""Simulator: runs manifests, and counts their cycles."""
