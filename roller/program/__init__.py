"""The rProgram, the memory needs of its tiles, and the rules of alignment and capacity."""
