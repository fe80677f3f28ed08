"""Simulated Graphcore IPUs: programs as a manifest of supersteps, a simulator that computes and counts cycles. No IPU is used."""
