"""The machine that programs are made for, and the cycles that its parts take."""
