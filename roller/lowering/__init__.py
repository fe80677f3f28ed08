"""Lowering of rPrograms to TVM TIR, shared by several device plugins.

An rProgram already is a loop nest. Lowering writes that nest as TIR directly; it uses no schedule primitives.
`sequential` serves devices whose units run sub-tiles one after another (`simd`). `grid` serves devices whose units run sub-tiles on
lanes (`simt`, `specialised`). Both use `tir`.
"""
