"""Chip detection: properties that the system reports for the attached chip, and the known chip that resembles it most."""
