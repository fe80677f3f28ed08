"""Every family of operators, element type and shape on the emulator of CUDA kernels, against NumPy. No GPU is needed.

python -m bench.cuda.emulated [--chips a100,h100] [--families matmul,conv] [--jobs 2]

Each operator of `bench.emulated.cases` is compiled for each chip, and its kernel run in every order of events the emulator has,
on small whole numbers (exact) and on floats (within the derived bound), into memory full of NaN with guards behind it. Where matrix
units suit the operator, so is the best program of each kind of them, and the best one without. Results are written as they come: a
run that was stopped goes on where it was.
"""

from __future__ import annotations

import sys

from bench.common.harness import RESULTS
from bench.emulated.command import Programme
from roller_cuda.emulator import emulator

PROGRAMME = Programme(
    benchmark="cuda_emulated",
    device="cuda",
    chips=("v100", "a100", "rtx4090", "h100"),
    folder=RESULTS / "cuda-emulated",
    tools=("apache-tvm", "nvidia-cuda-nvrtc-cu12"),
    orders=emulator.ORDERS,
    said=(__doc__ or "").splitlines()[0],
)

if __name__ == "__main__":
    sys.exit(PROGRAMME.main())
