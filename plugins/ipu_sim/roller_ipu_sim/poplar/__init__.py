"""Manifests printed as Poplar C++."""
