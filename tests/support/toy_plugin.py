"""A device whose kernels are the reference interpreter: everything but speed, without TVM."""

import json

import numpy as np

from roller.ir.serialization import expr_from_json
from roller.plugin import hookimpl
from roller.runtime.artifact import Artifact, KernelSource
from roller.target.catalog import find_spec, spec_from_dict
from roller.verify import reference


def toy_spec(device="toy"):
    data = find_spec("cpu", "zen3").model_dump(mode="json")
    return spec_from_dict({**data, "device": device, "chip": "one", "sources": {}})


class Runner:
    def __init__(self, artifact):
        self.artifact, self.expr, self.runs, self.closed = artifact, expr_from_json(artifact.expr), [], False

    def run(self, inputs, out):
        fixed = {
            t.name: np.frombuffer(self.artifact.constants[t.name], t.dtype).reshape(t.shape)
            for t in self.expr.inputs
            if t.name in self.artifact.constants
        }
        names = [t.name for t in self.expr.inputs if t.name not in fixed]
        for array in (*inputs, out):
            assert array.flags.c_contiguous and array.ctypes.data % 64 == 0
        assert not any(np.shares_memory(out, array) for array in inputs)
        self.runs.append((inputs, out))
        out[...] = reference(self.expr, {**fixed, **dict(zip(names, inputs, strict=True))}).astype(out.dtype)

    def close(self):
        self.closed = True


class Toy:
    ROLLER_API = 1

    @hookimpl
    def roller_default_spec(self):
        return toy_spec()

    @hookimpl
    def roller_codegen(self, spec, program):
        return KernelSource(json.dumps(program.to_dict()), "json", "main", {})

    @hookimpl
    def roller_build(self, spec, source):
        return Artifact("toy", source.text.encode(), source.launch, {"lines": 1}, spec.device, spec)

    @hookimpl
    def roller_load_kernel(self, artifact):
        return Runner(artifact)
