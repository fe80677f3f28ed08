"""Built kernels on trial: timed in turns, passed over where they spill, compared with the reference."""

import itertools
from dataclasses import replace

import pytest

import roller
from roller import ops, trial
from roller.errors import DeviceUnavailableError, KernelError, LaunchError, WrongResultError
from roller.plugin import hookimpl
from toy_plugin import Runner, Toy


def matmul(m=24, n=32, k=16):
    return ops.relu(ops.matmul(roller.tensor((m, k), name="a"), roller.tensor((k, n), name="b")))


class Slow(Runner):
    def run(self, inputs, out):
        import time

        time.sleep(0.001 * len(self.artifact.data))
        super().run(inputs, out)


class Measured(Toy):
    """Later candidates are faster; some break."""

    def __init__(self, broken=()):
        self.built, self.broken = itertools.count(1), broken

    @hookimpl
    def roller_build(self, spec, source):
        artifact, number = Toy.roller_build(self, spec, source), next(self.built)  # several are built at once
        return replace(artifact, data=bytes(40 - 13 * number), resources={"number": number})

    @hookimpl
    def roller_load_kernel(self, artifact):
        if artifact.resources["number"] in self.broken:
            raise LaunchError("broken")
        return Slow(artifact)


def test_measuring_ranks_anew(toy, monkeypatch):
    monkeypatch.setattr(trial, "MEASURE_SECONDS", 0.01)
    toy(Measured())
    kernel = roller.compile(matmul(), "toy", top_k=3, measure=True)
    measured = [c.measured_s for c in kernel.candidates]
    assert measured == sorted(measured) and kernel.artifact.resources["number"] == 3
    assert "measured" in str(kernel.explain())


def test_candidates_that_break_come_last(toy):
    toy(Measured(broken=(3,)))
    kernel = roller.compile(matmul(), "toy", top_k=3, measure=True)
    assert kernel.candidates[-1].measured_s is None and kernel.artifact.resources["number"] == 2
    toy(Measured(broken=(1, 2, 3)))
    with pytest.raises(KernelError, match="none of the 3"):
        roller.compile(matmul(), "toy", top_k=3, measure=True)


class Spilling(Toy):
    """The toolchain reports spills of the first programs."""

    def __init__(self, spilling):
        self.built, self.spilling = 0, spilling

    @hookimpl
    def roller_build(self, spec, source):
        self.built += 1
        return replace(Toy.roller_build(self, spec, source), resources={"main.spilled_bytes": 8 * (self.built <= self.spilling)})


@pytest.mark.parametrize(("spilling", "built", "chosen"), [(0, 1, 0), (1, 2, 1), (3, 4, 3), (9, 4, 0)])
def test_programs_that_spill_make_way(toy, spilling, built, chosen):
    """For the best one that keeps its values in registers; where none of the first few does, the best one stays."""
    plugin = Spilling(spilling)
    toy(Toy())
    ranked = [c.program for c in roller.compile(matmul(), "toy", top_k=5).candidates]
    toy(plugin)
    kernel = roller.compile(matmul(), "toy", top_k=5)
    assert plugin.built == built
    assert kernel.program == ranked[chosen]
    assert [c.program for c in kernel.candidates] == [ranked[chosen], *(p for n, p in enumerate(ranked) if n != chosen)]


def test_verification_finds_a_wrong_element(toy):
    class Wrong(Runner):
        def run(self, inputs, out):
            super().run(inputs, out)
            out.reshape(-1)[-1] += 1

    class Lying(Toy):
        @hookimpl
        def roller_load_kernel(self, artifact):
            return Wrong(artifact)

    toy(Toy())
    roller.compile(matmul(), "toy", verify=True)
    toy(Lying())
    with pytest.raises(WrongResultError, match=r"\(23, 31\)"):
        roller.compile(matmul(), "toy", verify=True)


def test_without_the_device_the_emulator_is_named(toy):
    class Absent(Toy):
        @hookimpl
        def roller_load_kernel(self, artifact):
            raise DeviceUnavailableError("no toy here")

    class Emulated(Absent):
        @hookimpl
        def roller_emulate(self, artifact):
            return Runner(artifact)

    toy(Emulated())
    with pytest.raises(DeviceUnavailableError, match="no toy here; `roller verify --emulate`"):
        roller.compile(matmul(), "toy", verify=True)
    kernel = roller.compile(matmul(), "toy")
    trial.verify(kernel.artifact, kernel.expr, emulate=True)
    toy(Absent())
    with pytest.raises(DeviceUnavailableError, match=r"no toy here$"):
        roller.compile(matmul(), "toy", verify=True)
