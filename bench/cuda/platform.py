"""NVIDIA's GPUs as `bench.gpu` knows them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.cuda.driver import Driver
from bench.gpu.platform import Platform, Torch


def facts(spec: Any) -> dict[str, Any]:
    """The compute capability of a chip."""
    return {"capability": list(spec.options["compute_capability"])}


def preference(gpu: Mapping[str, Any], chip: Mapping[str, Any]) -> int | None:
    """How far a chip's compute capability is below a GPU's: kernels run on the one that they were compiled for, and without the "a"
    also on later ones of the same major number.
    """
    (major, minor), (wanted, least) = gpu["capability"], chip["capability"]
    later = major == wanted and minor >= least and not chip["arch"].endswith("a")
    return minor - least if later or (major, minor) == (wanted, least) else None


def architecture(gpu: Mapping[str, Any]) -> str:
    """The compute capability of a GPU."""
    major, minor = gpu["capability"]
    return f"compute capability {major}.{minor}"


PLATFORM = Platform(
    device="cuda",
    maker="NVIDIA",
    units="SMs",
    events="CUDA events",
    runtime="driver_cuda",
    module=Path("/proc/driver/nvidia/version"),
    environment={},
    chip="h100",
    tools=("apache-tvm", "nvidia-cuda-nvrtc-cu12", "numpy"),
    emulated=frozenset({"text"}),
    probes="roller_cuda.chip.calibration",
    calibration="bench.cuda.calibration",
    facts=facts,
    preference=preference,
    architecture=architecture,
    driver=Driver,
    torch=Torch(
        version="cuda",
        convolutions="cuDNN",
        fused="cudnn_convolution_relu",
        blas={},
        tiles=(
            (128, 256, 64, 8, 3),
            (256, 128, 64, 8, 3),
            (128, 128, 64, 4, 4),
            (128, 128, 32, 4, 4),
            (128, 64, 64, 4, 4),
            (64, 128, 64, 4, 4),
            (64, 64, 64, 4, 4),
            (16, 64, 128, 4, 4),
        ),
    ),
)
