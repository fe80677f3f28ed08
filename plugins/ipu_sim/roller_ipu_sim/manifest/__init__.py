"""What a program for the simulated IPU is, as data, and the rules that it must keep."""
