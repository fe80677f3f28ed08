"""Every family of operators, element type and shape on the emulator of AMD assembly, against NumPy. No GPU is needed.

python -m bench.rocm.emulated [--chips mi210,rx7900xtx] [--families matmul,conv] [--limit 200] [--jobs 2]

Each operator of `bench.emulated.cases` is compiled for each chip, and its machine code run in every order of events there is,
on small whole numbers (exact) and on floats (within the derived bound), into memory full of NaN with guards behind it. Where matrix
units suit the operator, so is the best program with them, and the best one without. Results are written as they come: a run that
was stopped goes on where it was. No AMD hardware is used.
"""

from __future__ import annotations

import sys

from bench.common.harness import RESULTS
from bench.emulated.command import Programme
from roller_rocm.emulator import emulator

PROGRAMME = Programme(
    benchmark="rocm_emulated",
    device="rocm",
    chips=("mi50", "mi100", "mi210", "mi300x", "rx7900xtx"),
    folder=RESULTS / "rocm-emulated",
    tools=("apache-tvm", "ziglang"),
    orders=emulator.ORDERS,
    said=(__doc__ or "").splitlines()[0],
)

if __name__ == "__main__":
    sys.exit(PROGRAMME.main())
