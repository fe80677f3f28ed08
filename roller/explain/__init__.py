"""A program explained: level by level, and why its tiles did not grow."""
