"""Blocks whose lanes are specialised: producers start asynchronous copies, consumers start matrix atoms."""
