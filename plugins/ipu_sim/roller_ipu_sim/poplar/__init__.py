"""Poplar back end: manifests printed as Poplar C++."""
