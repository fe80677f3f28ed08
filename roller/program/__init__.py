"""What an rProgram is, what its tiles need, which tiles are aligned, and which fit."""
