"""The micro-performance model: what a program is predicted to take, one module for each term."""
