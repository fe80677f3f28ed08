"""AMD's GPUs as `bench.gpu` knows them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.gpu.platform import Platform, Torch
from bench.rocm.driver import Driver


def facts(spec: Any) -> dict[str, Any]:
    """The local memory that a workgroup of a chip may have."""
    local = spec.level("shared")
    return {"local_bytes": local.tile_max_bytes or local.capacity_bytes}


def preference(gpu: Mapping[str, Any], chip: Mapping[str, Any]) -> int | None:
    """Code objects run on the processor that they were compiled for, and on no other."""
    return 0 if gpu["arch"] == chip["arch"] else None


def architecture(gpu: Mapping[str, Any]) -> str:
    """The processor of a GPU."""
    return str(gpu["arch"])


PLATFORM = Platform(
    device="rocm",
    maker="AMD",
    units="units",
    events="HIP events",
    runtime="driver_hip",
    module=Path("/sys/module/amdgpu/version"),
    environment={"PYTORCH_MIOPEN_SUGGEST_NHWC": "1"},  # else channels-last images are turned before MIOpen sees them
    chip="mi300x",
    tools=("apache-tvm", "ziglang", "numpy"),
    emulated=frozenset({"assembly"}),
    probes="",
    calibration="",
    facts=facts,
    preference=preference,
    architecture=architecture,
    driver=Driver,
    torch=Torch(
        version="hip",
        convolutions="MIOpen",
        fused="miopen_convolution_relu",
        blas={"rocBLAS": "cublas", "hipBLASLt": "cublaslt"},  # torch's own choice depends on the GPU and its version
        tiles=(  # stages: local memory is 64 KiB
            (256, 256, 64, 8, 2),
            (256, 128, 32, 8, 2),
            (128, 256, 32, 8, 2),
            (128, 128, 64, 8, 2),
            (128, 128, 32, 4, 2),
            (128, 64, 64, 4, 2),
            (64, 128, 64, 4, 2),
            (64, 64, 64, 4, 2),
            (16, 64, 128, 4, 2),
        ),
    ),
)
