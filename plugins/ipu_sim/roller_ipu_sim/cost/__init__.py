"""Cost model: the prediction of a program in simulated cycles."""
