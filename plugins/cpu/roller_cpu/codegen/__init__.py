"""Source text from programs."""
