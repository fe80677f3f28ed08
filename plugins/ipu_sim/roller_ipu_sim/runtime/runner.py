"""Runner on the simulator: the host computes the numbers, and cycles are counted. There is no IPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from roller.plugin import Artifact, numpy_dtype
from roller_ipu_sim.codegen.generator import AGAIN
from roller_ipu_sim.manifest.models import from_json
from roller_ipu_sim.simulator.execute import Simulation
from roller_ipu_sim.simulator.report import Report
from roller_ipu_sim.toolchain.compiling import text_of

Array = npt.NDArray[Any]


class Simulator:
    """A manifest that runs on the simulated machine."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact, self._manifest = artifact, from_json(text_of(artifact))
        self._simulation = Simulation(self._manifest, artifact.spec)
        tensors = {t.name: t for t in self._manifest.tensors}
        self._names = [n for n in artifact.launch["inputs"] if n not in artifact.constants]
        self._constants = {
            name: np.frombuffer(value, numpy_dtype(tensors[name].dtype))
            for name, value in artifact.constants.items()
            if name in tensors
        }

    def run(self, inputs: tuple[Array, ...], out: Array) -> None:
        """Computes `out`; `roller.runtime.artifact.Runner` describes the arrays."""
        if not out.size:
            return
        arrays = {**self._constants, **dict(zip(self._names, inputs, strict=True))}
        homes = [(t, t.name.partition(AGAIN)[0]) for t in self._manifest.tensors]
        wanted = {t.name: arrays[name].reshape(t.shape) for t, name in homes if name in arrays}
        found = self._simulation.run(wanted)
        out[...] = found.outputs[self._artifact.launch["output"]].reshape(out.shape)

    def profile(self) -> Report:
        """Returns the simulated cycles of every call."""
        return Report(self._simulation.profile)

    def close(self) -> None:
        """Frees nothing."""
