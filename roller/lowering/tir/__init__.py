"""Short forms for building TIR: where tiles start, addresses, loads, scalar trees, arithmetic that TVM does not fold."""
