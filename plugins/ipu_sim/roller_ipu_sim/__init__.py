"""Simulated Graphcore IPUs: a program becomes supersteps, a simulator computes them and counts their cycles. No IPU is used."""
