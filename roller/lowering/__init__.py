"""From rPrograms to TVM: what several device plugins share.

An rProgram already is a loop nest, so lowering writes that nest down as TIR instead of steering schedule primitives to it.
`sequential` serves devices whose units run sub-tiles one after another (`simd`), `grid` those that run them on lanes (`simt`,
`specialised`); `tir` serves all.
"""
