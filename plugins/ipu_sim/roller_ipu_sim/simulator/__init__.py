"""Manifests executed, and their cycles counted."""
