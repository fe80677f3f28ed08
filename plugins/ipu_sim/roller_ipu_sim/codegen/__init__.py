"""Manifests from programs."""
