import contextlib
import gc
import re

import numpy as np
import pytest

import roller
from roller import ops
from roller.errors import (
    ConstructionError,
    ExpressionError,
    HookError,
    KernelError,
    LaunchError,
    SpecError,
    UnknownDeviceError,
)
from roller.plugin import hookimpl
from roller.search import construct
from roller.target.catalog import find_spec
from roller.target.subset import narrowed
from toy_plugin import Runner, Toy, toy_spec


def matmul(m=24, n=32, k=16):
    return ops.relu(ops.matmul(roller.tensor((m, k), name="a"), roller.tensor((k, n), name="b")))


# --- naming a chip ---------------------------------------------------------------------------------------------------


def test_devices_and_chips_by_name_spec_and_file():
    zen3 = find_spec("cpu", "zen3")
    path = next(e.path for e in roller.specs("cpu") if e.chip == "zen3")
    given = [("cpu:zen3", None), ("cpu", zen3), ("cpu", path), ("cpu", str(path))]
    programs = [roller.compile(matmul(), device, spec=spec).program for device, spec in given]
    assert all(p == programs[0] for p in programs)


@pytest.mark.parametrize(
    ("device", "spec", "error", "said"),
    [
        ("cpu:zen3", find_spec("cpu", "zen3"), SpecError, "names a chip and spec= gives one"),
        ("cpu", find_spec("cuda", "a100"), SpecError, "of device 'cuda', not of 'cpu'; say device='cuda'"),
        ("cpu:zen33", None, SpecError, "did you mean 'zen3'"),
        ("cpu", "no/such/file.toml", SpecError, "no such file$"),
        ("cpu", "cpu:zen3", SpecError, "no such file; a chip of `roller specs list` is named as the device"),
        ("cpuu:zen3", None, UnknownDeviceError, "did you mean 'cpu'"),
        ("npu_demo:npu-demo", None, UnknownDeviceError, "installed"),
        ("", None, UnknownDeviceError, "installed"),
    ],
)
def test_wrong_devices_and_chips(device, spec, error, said):
    with pytest.raises(error, match=said):
        roller.compile(matmul(), device, spec=spec)


@pytest.mark.parametrize("constants", [3, [1.0], "b", 0])
def test_constants_are_given_by_name(constants):
    with pytest.raises(ExpressionError, match=r"constants: .*name of an input.* expected, got"):
        roller.compile(matmul(), "cpu:zen3", constants=constants)


def test_what_is_no_path():
    for call in (lambda: roller.compile(matmul(), spec=3), lambda: roller.load_spec(3)):
        with pytest.raises(SpecError, match="the path of its file, not a int"):
            call()
    kernel = roller.compile(matmul(), "cpu:zen3")
    for call in (lambda: roller.load(3), lambda: kernel.save(3)):
        with pytest.raises(KernelError, match="expected, not a int"):
            call()


def test_specs_by_name():
    assert roller.load_spec("h100") == roller.load_spec("cuda:h100") == find_spec("cuda", "h100")
    assert roller.load_spec(find_spec("cpu", "zen5")).chip == "zen5"
    assert {e.device for e in roller.specs("cpu")} == {"cpu"} < {e.device for e in roller.specs()}
    for name, said in (("h1000", "did you mean 'h100'"), ("rocm:h100", "no spec"), ("x.toml", "no such file")):
        with pytest.raises(SpecError, match=said):
            roller.load_spec(name)


def test_a_users_own_spec_is_found(tmp_path, monkeypatch):
    from roller.target.catalog import dump_spec

    monkeypatch.setenv("ROLLER_CONFIG_DIR", str(tmp_path))
    folder = tmp_path / "specs" / "cpu"
    folder.mkdir(parents=True)
    mine = find_spec("cpu", "zen3").model_copy(update={"chip": "mine"})
    (folder / "mine.toml").write_text(dump_spec(mine))
    assert roller.load_spec("cpu:mine") == mine
    assert roller.compile(matmul(), "cpu:mine").spec.chip == "mine"


# --- the pipeline ----------------------------------------------------------------------------------------------------


def test_candidates_are_ranked_and_the_first_is_built(toy):
    toy(Toy())
    kernel = roller.compile(matmul(), "toy", top_k=4)
    seconds = [c.estimate.seconds for c in kernel.candidates]
    assert 1 < len(seconds) <= 4 and seconds == sorted(seconds)
    assert kernel.program == kernel.candidates[0].program
    assert all(c.measured_s is None for c in kernel.candidates)
    assert kernel.artifact.versions["roller-compiler"] == roller.__version__


@pytest.mark.parametrize("collecting", [True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_the_collector_is_left_as_it_was(collecting, fails, monkeypatch):
    """After a construction as after one that fails; in between it rests."""
    seen = []

    def nests(expr, spec):
        seen.append(gc.isenabled())
        if fails:
            raise ConstructionError("none")
        return original(expr, spec)

    original = construct._nests
    monkeypatch.setattr(construct, "_nests", nests)
    (gc.enable if collecting else gc.disable)()
    try:
        with contextlib.suppress(ConstructionError):
            roller.compile(ops.relu(roller.tensor((8,))), device="cpu:zen5")
        assert (gc.isenabled(), seen) == (collecting, [False])
    finally:
        gc.enable()


def test_symbolic_tensors_and_expressions_are_the_same():
    op = matmul()
    kernels = [roller.compile(o, "cpu:zen3") for o in (op, ops.expression(op))]
    assert kernels[0].artifact.to_bytes() == kernels[1].artifact.to_bytes()


@pytest.mark.parametrize("op", [None, 3, "matmul", np.ones(3), roller.tensor((3, 4))])
def test_what_is_no_operator(op):
    with pytest.raises(ExpressionError):
        roller.compile(op, "cpu:zen3")


@pytest.mark.parametrize("top_k", [0, -1, 1.5, True, None])
def test_top_k_is_a_positive_number(top_k):
    with pytest.raises(ConstructionError, match="top_k"):
        roller.compile(matmul(), "cpu:zen3", top_k=top_k)


def test_refused_programs_are_left_out(toy):
    seen = []

    class Picky(Toy):
        @hookimpl
        def roller_refusal(self, spec, program):
            seen.append(program)
            return ("first", "not this one") if program == seen[0] else None

    toy(Picky())
    kernel = roller.compile(matmul(), "toy", top_k=4)
    assert seen[0] not in [c.program for c in kernel.candidates] and kernel.candidates

    class Stubborn(Toy):
        @hookimpl
        def roller_refusal(self, spec, program):
            return ("mood", "never")

    toy(Stubborn())
    with pytest.raises(ConstructionError, match="refused by mood"):
        roller.compile(matmul(), "toy")


def test_refused_programs_make_room_for_others(toy, monkeypatch):
    """Even where only one program is wanted, and the best one is refused; without another construction."""
    best = roller.compile(matmul(), "cpu:zen3", top_k=1).program.stages[0].tiles
    begun, original = [], construct._nests
    monkeypatch.setattr(construct, "_nests", lambda *given: begun.append(given) or original(*given))

    class Choosy(Toy):
        @hookimpl
        def roller_refusal(self, spec, program):
            return ("best", "too good") if program.stages[0].tiles == best else None

    toy(Choosy())
    kernel = roller.compile(matmul(), "toy", top_k=1)
    assert len(kernel.candidates) == 1 and kernel.program.stages[0].tiles != best and len(begun) == 1


def raising(where):
    """A device whose kernels raise an error of no kind that anybody knows."""

    class Raising(Runner):
        def run(self, inputs, out):
            if where == "run()":
                raise ZeroDivisionError("in run")
            super().run(inputs, out)

        def close(self):
            raise ZeroDivisionError("in close")

        @property
        def shortcut(self):
            def short(inputs, out):
                raise ZeroDivisionError("in shortcut")

            return short if where == "shortcut" else None

    class Broken(Toy):
        @hookimpl
        def roller_load_kernel(self, artifact):
            return Raising(artifact)

    return Broken()


@pytest.mark.parametrize("where", ["run()", "shortcut"])
def test_what_a_plugins_kernel_raises_is_contained(toy, where):
    toy(raising(where))
    kernel = roller.compile(matmul(), "toy", top_k=1).load()
    arrays = np.ones((24, 16), np.float32), np.ones((16, 32), np.float32)
    with pytest.raises(HookError, match=f"plugin 'toy': {re.escape(where)} raised ZeroDivisionError: in") as caught:
        kernel(*arrays)
    assert caught.value.hook == where and isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(HookError, match="close"):
        kernel._loaded().close()


class There:
    """An array in the memory of an invented device."""

    def __init__(self, values):
        self.values = values


@pytest.fixture
def roomy(toy):
    """A device with memory of its own: a kernel, and what it was asked."""
    asked = []

    class Roomy(Runner):
        def resident(self, arrays, out, stream, wanted):
            asked.append((arrays, out, stream, [w.name for w in wanted], [w.shape for w in wanted]))
            if not isinstance(arrays[0], There):
                return NotImplemented
            if stream == "broken":
                raise ZeroDivisionError("in resident")
            return There(None) if out is None else out

    class Device(Toy):
        @hookimpl
        def roller_load_kernel(self, artifact):
            return Roomy(artifact)

    toy(Device())
    return roller.compile(matmul(), "toy", top_k=1), asked


def test_arrays_in_a_devices_memory_go_to_its_plugin_as_they_are(roomy):
    kernel, asked = roomy
    a, b, out = There(1), There(2), There(3)
    assert type(kernel(a, b)) is There
    assert kernel(b=b, a=a, out=out, stream=7) is out
    wanted = ["a", "b", "out"], [(24, 16), (16, 32), (24, 32)]
    assert asked == [((a, b), None, None, *wanted), ((a, b), out, 7, *wanted)]
    with pytest.raises(HookError, match=r"resident\(\) raised ZeroDivisionError: in resident"):
        kernel(a, b, stream="broken")
    with pytest.raises(LaunchError, match="no array for b"):
        kernel(a, stream=7)


def test_arrays_in_host_memory_take_the_other_way(roomy):
    kernel, asked = roomy
    a, b = np.ones((24, 16), np.float32), np.ones((16, 32), np.float32)
    assert (kernel(a, b) == 16).all() and len(asked) == 1
    with pytest.raises(LaunchError, match="stream= goes with arrays in the device's own memory"):
        kernel(a, b, stream=7)


def test_devices_without_memory_of_their_own_have_no_streams():
    kernel = roller.compile(ops.relu(roller.tensor((4,), name="a")), "cpu")
    with pytest.raises(LaunchError, match="stream="):
        kernel(np.ones(4, np.float32), stream=1)
    with pytest.raises(LaunchError, match="stream="):
        kernel.load()(np.ones(4, np.float32), out=np.ones(4, np.float32), stream=0)


def test_an_input_may_be_called_stream():
    kernel = roller.compile(ops.relu(roller.tensor((4,), name="stream")), "cpu")
    values = np.array([-1, 0, 1, 2], np.float32)
    assert (kernel(stream=values) == np.maximum(values, 0)).all()
    assert (kernel.load()(stream=values, out=np.empty_like(values)) == np.maximum(values, 0)).all()


def test_a_plugins_kernel_that_raises_loses_the_measurement(toy):
    toy(raising("run()"))
    with pytest.raises(KernelError, match="none of the 2"):
        roller.compile(matmul(), "toy", top_k=2, measure=True)


@pytest.mark.parametrize(
    ("constants", "error", "said"),
    [
        ({"c": np.ones(3)}, ExpressionError, "no input is called 'c'; inputs: a, b"),
        ({"b": np.ones((16, 32))}, LaunchError, "b: element type float64"),
        ({"b": np.ones((32, 16), "f4")}, LaunchError, "b: shape"),
        ({"b": 3}, LaunchError, r"b: shape \(\) given, \(16, 32\) expected"),
    ],
)
def test_wrong_constants(constants, error, said):
    with pytest.raises(error, match=said):
        roller.compile(matmul(), "cpu:zen3", constants=constants)


# --- fewer units -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chip", ["cpu:zen5", "cpu:neoverse-v2", "cuda:a100", "rocm:mi300x", "ipu_sim:gc200", "npu_demo:npu-demo"])
def test_narrowed_specs_are_valid(chip):
    spec = roller.load_spec(chip)
    assert narrowed(spec, None) is spec and narrowed(spec, spec.unit.count) is spec
    for units in {1, 2, 3, 5, spec.unit.count // 2, spec.unit.count - 1}:
        if 0 < units < spec.unit.count:
            less = narrowed(spec, units)
            assert less.unit.count == units
            if spec.levels[0].carved_from is None:
                assert less.levels[0].capacity_bytes == spec.levels[0].capacity_bytes
            assert less.atoms[0].gflops == pytest.approx(spec.atoms[0].gflops * units / spec.unit.count)
            for level in less.levels:
                assert not level.unit_bandwidth_gbps or level.bandwidth_gbps <= units * level.unit_bandwidth_gbps


@pytest.mark.parametrize("threads", [0, -1, 1000, 1.5, "2", True])
def test_wrong_thread_counts(threads):
    with pytest.raises(SpecError, match="threads asked for"):
        roller.compile(matmul(), "cpu:zen3", threads=threads)


@pytest.mark.parametrize("device", ["cuda:a100", "rocm:mi210"])
def test_gpus_deal_tiles_to_all_their_units(device):
    with pytest.raises(SpecError, match=r"threads=2: tiles go to whichever .* is free"):
        roller.compile(matmul(), device, threads=2)


def test_toy_spec_is_what_it_says():
    assert toy_spec().device == "toy"
