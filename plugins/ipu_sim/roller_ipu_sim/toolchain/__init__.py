"""Artifacts from manifests."""
