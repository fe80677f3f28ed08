"""What differs between makers of GPUs, as data: `bench.cuda.platform` and `bench.rocm.platform` are the two that there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.gpu.driver import Driver

Table = Mapping[str, Any]
Tile = tuple[int, int, int, int, int]  # of a product in Triton: rows, columns and depth of a tile, warps, stages


@dataclass(frozen=True)
class Torch:
    """How torch, which calls every GPU "cuda", names what it brings for these.

    `version`: the attribute of `torch.version` that says for which toolkit it was built, None in builds for others. `convolutions`:
    the library behind its convolutions; `fused`: torch's function for one with bias and relu. `blas`: libraries for products,
    beside torch's own choice, by what results call them, each as `preferred_blas_library` takes it.
    """

    version: str
    convolutions: str
    fused: str
    blas: Mapping[str, str]
    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class Platform:
    """One maker's GPUs.

    `device`: roller's name for them, and that of the benchmark. `maker`, `units`, `events`: how people call the maker, what runs a
    block, and the events that are timed. `runtime`: what a driver's description of a GPU calls the version of its library.
    `module`: where the kernel module says its version. `environment`: what torch reads when it is imported, unless it is set.

    `chip`: for which chip is built where none is named. `tools`: distributions that decide what kernels are. `emulated`: parts of a
    launch description that only emulators read. `probes`: the module of roller whose `prebuilt(spec)` gives the files of
    `calibration/<chip>/`; `calibration`: the module that runs them; empty where there are none. `facts`: what a package says of a
    chip, from its spec, beside what it says of every chip.

    `preference`: None where a chip's kernels do not run on a GPU (both as tables), otherwise the less the better they fit.
    `architecture`: what kernels for a GPU must be for, in words.
    """

    device: str
    maker: str
    units: str
    events: str
    runtime: str
    module: Path
    environment: Mapping[str, str]
    chip: str
    tools: tuple[str, ...]
    emulated: frozenset[str]
    probes: str
    calibration: str
    facts: Callable[[Any], dict[str, Any]]
    preference: Callable[[Table, Table], int | None]
    architecture: Callable[[Table], str]
    driver: Callable[[], Driver]
    torch: Torch

    def command(self, what: str) -> str:
        """The command that does something of this benchmark."""
        return f"python -m bench.{self.device}.{what}"


def known(device: str) -> Platform:
    """The platform of a device; `ModuleNotFoundError` where there is none."""
    found = import_module(f"bench.{device}.platform").PLATFORM
    assert isinstance(found, Platform), device
    return found
