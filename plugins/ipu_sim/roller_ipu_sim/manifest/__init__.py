"""Manifest of the simulated IPU: a program as data, and its rules."""
