"""The simulated IPUs: nothing is timed."""
