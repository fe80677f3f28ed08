"""What a program is predicted to take, in simulated cycles."""
