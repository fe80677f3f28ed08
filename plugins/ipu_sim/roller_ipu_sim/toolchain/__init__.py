"""Toolchain: artifacts from manifests."""
