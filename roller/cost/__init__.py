"""The micro-performance model: the predicted time of a program, one module for each term."""
