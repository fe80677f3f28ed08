"""What all benchmarks share: cases, peers, timing, reports."""
