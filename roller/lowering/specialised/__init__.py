"""Warp-specialised blocks: producer lanes start asynchronous copies, consumer lanes start matrix atoms."""
