import copy
import os
import pickle
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import roller
from roller import ops
from roller.compiler import compile as build
from roller.device.plugins import Device
from roller.errors import KernelError, LaunchError
from roller.explain.report import _kernels
from roller.kernel import Kernel
from roller.runtime.arrays import aligned_empty
from roller.runtime.artifact import Artifact, BuildOptions, KernelSource, Later
from toy_plugin import Toy, toy_spec

try:
    import torch
except ModuleNotFoundError:
    torch = None  # type: ignore[assignment]

needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed: pip install 'roller-compiler[torch]'")


F32 = np.dtype(np.float32)


@pytest.fixture
def toy(monkeypatch):
    device = Device("toy", Toy())
    monkeypatch.setattr("roller.compiler.resolve", lambda name, spec: (device, spec or device.default_spec()))
    monkeypatch.setattr("roller.kernel.load_device", lambda name: device)
    return device


@pytest.fixture
def kernel(toy):
    a, b = roller.tensor((5, 6), name="a"), roller.tensor((6, 7), name="b")
    return build(ops.relu(ops.matmul(a, b)), "toy")


def arrays():
    generator = np.random.default_rng(0)
    return generator.integers(-4, 5, (5, 6)).astype(F32), generator.integers(-4, 5, (6, 7)).astype(F32)


def right(result, a, b):
    return np.array_equal(np.asarray(result), np.maximum(np.asarray(a) @ np.asarray(b), 0))


# --- artifacts -------------------------------------------------------------------------------------------------------


def artifact(**changes):
    given = {"launch": {"x": [1, {"y": 2.5}], "n": None}, "resources": {"spills": 0}, "constants": {"w": b"123", "v": b""}}
    return Artifact("f", b"\0code\xff", device="toy", spec=toy_spec(), versions={"a": "1"}, **{**given, **changes})


def test_artifacts_round_trip():
    one = artifact()
    again = Artifact.from_bytes(one.to_bytes())
    assert again == one and again.to_bytes() == one.to_bytes() and hash(again) == hash(one)
    assert list(again.constants) == ["w", "v"] and again.constants["v"] == b""


def test_resources_are_worked_out_once_and_only_when_asked_for():
    asked = []

    def ask():
        asked.append(1)
        return {"spills": 0}

    one = artifact(resources=Later(ask))
    copy = replace(one, data=b"other")
    assert not asked
    assert copy.resources["spills"] == 0 and dict(one.resources) == {"spills": 0} and len(asked) == 1
    assert one == artifact() and hash(one) == hash(artifact()) and one.to_bytes() == artifact().to_bytes()
    assert repr(one.resources) == repr(artifact().resources) and pickle.loads(pickle.dumps(one.resources)) == {"spills": 0}
    assert len(asked) == 1


def test_artifacts_are_deterministic_and_frozen():
    assert artifact().to_bytes() == artifact().to_bytes()
    source = KernelSource("text", "c", "main", {"grid": [1, 2]})
    assert hash(source) == hash(KernelSource("text", "c", "main", {"grid": [1, 2]}))
    with pytest.raises(TypeError):
        source.launch["grid"] = 3
    assert BuildOptions() == BuildOptions(None, (), False, None)


def test_every_truncation_is_one_error(tmp_path):
    raw = artifact().to_bytes()
    for length in [*range(64), *range(64, len(raw), 37), len(raw) - 1]:
        with pytest.raises(KernelError, match=r"^k\.roller: "):
            Artifact.from_bytes(raw[:length], "k.roller")
    with pytest.raises(KernelError, match="damaged"):
        Artifact.from_bytes(raw + b"x")


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_every_flipped_bit_is_noticed(data):
    raw = bytearray(artifact().to_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(KernelError):
        Artifact.from_bytes(bytes(raw))


def test_foreign_versions_and_files_say_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("roller.runtime.artifact.ARTIFACT_VERSION", 7)
    raw = artifact().to_bytes()
    monkeypatch.undo()
    with pytest.raises(KernelError, match="format 7, this roller reads 2; compile the operator again"):
        Artifact.from_bytes(raw)
    path = tmp_path / "x.roller"
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(KernelError, match=r"x\.roller: not a roller kernel"):
        roller.load(path)
    for missing in (tmp_path / "none.roller", tmp_path, "nul\0byte"):
        with pytest.raises(KernelError, match="cannot be read"):
            roller.load(missing)


def test_saving_is_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "k.roller"
    path.write_bytes(b"old")

    def interrupted(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        artifact().save(path)
    monkeypatch.undo()
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    artifact().save(path)
    assert Artifact.load(path) == artifact() and list(tmp_path.iterdir()) == [path]
    with pytest.raises(KernelError, match="cannot be written"):
        artifact().save(tmp_path / "no" / "k.roller")


# --- calling ---------------------------------------------------------------------------------------------------------


def test_by_position_by_name_and_mixed(kernel):
    a, b = arrays()
    for result in (kernel(a, b), kernel(b=b, a=a), kernel(a, b=b)):
        assert type(result) is np.ndarray and result.dtype == F32 and right(result, a, b)


@needs_torch
def test_torch_gives_torch(kernel):
    a, b = map(torch.from_numpy, arrays())
    result = kernel(a, b)
    assert isinstance(result, torch.Tensor) and right(result, a, b)
    out = torch.empty(5, 7)
    assert kernel(a, b, out=out) is out and right(out, a, b)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda k, a, b: k(a), "no array for b"),
        (lambda k, a, b: k(), "no array for a, b"),
        (lambda k, a, b: k(a, b, a), "3 arrays given, 2 expected"),
        (lambda k, a, b: k(a, c=b), "no input is called 'c'"),
        (lambda k, a, b: k(a, b, a=a), "by position and by name"),
        (lambda k, a, b: k(a.T, b), r"a: shape \(6, 5\) given, \(5, 6\) expected"),
        (lambda k, a, b: k(a.astype("f8"), b), "a: element type float64 given, float32 expected"),
        (lambda k, a, b: k(a, [1.0]), r"b: shape \(1,\) given"),
        (lambda k, a, b: k(a, b, out=np.empty((5, 7))), "out: element type float64"),
        (lambda k, a, b: k(a, b, out=np.empty((7, 5), F32)), "out: shape"),
        (lambda k, a, b: k(a, b, out=np.broadcast_to(F32.type(0), (5, 7))), "out: the array is read-only"),
        pytest.param(lambda k, a, b: k(torch.from_numpy(a).to("meta"), b), "a: the array lies on meta", marks=needs_torch),
    ],
)
def test_wrong_arguments_are_launch_errors(kernel, call, said):
    with pytest.raises(LaunchError, match=said):
        call(kernel, *arrays())


def layouts(array):
    yield array
    yield np.asfortranarray(array)
    yield np.flip(np.flip(array).copy())
    wide = np.zeros((array.shape[0], array.shape[1] * 2), array.dtype)
    wide[:, ::2] = array
    yield wide[:, ::2]
    frozen = array.copy()
    frozen.flags.writeable = False
    yield frozen
    raw = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    raw[...] = array
    yield raw
    if torch is not None:
        yield torch.from_numpy(array.T.copy()).T


def test_every_layout_of_inputs_and_output(kernel):
    a, b = arrays()
    for x in layouts(a):
        for y in layouts(b):
            assert right(kernel(x, y), a, b)
    for out in layouts(np.zeros((5, 7), F32)):
        if not isinstance(out, np.ndarray) or out.flags.writeable:
            assert kernel(a, b, out=out) is out and right(out, a, b)


def test_ready_memory_is_passed_on_without_copies(kernel):
    a, b, out = (aligned_empty(s, F32) for s in ((5, 6), (6, 7), (5, 7)))
    a[...], b[...] = arrays()
    kernel(a, b, out=out)
    inputs, result = kernel._runner._runner.runs[-1]
    assert inputs[0] is a and inputs[1] is b and result is out


def test_output_may_overlap_inputs(toy):
    double = build(roller.tensor((16,), name="x") * 2, "toy")
    memory = aligned_empty((32,), F32)
    memory[...] = np.arange(32)
    double(memory[:16], out=memory[:16])
    assert np.array_equal(memory[:16], 2 * np.arange(16))
    memory[...] = np.arange(32)
    double(memory[:16], out=memory[8:24])
    assert np.array_equal(memory[8:24], 2 * np.arange(16))


@needs_torch
def test_element_types_are_kept(toy):
    kernel = build(roller.tensor((3,), "float64", name="x") + 1, "toy")
    assert kernel(torch.ones(3, dtype=torch.float64)).dtype == torch.float64
    with pytest.raises(LaunchError, match="bfloat16 given, float64 expected"):
        kernel(torch.ones(3, dtype=torch.bfloat16))


def test_zero_dimensional(toy):
    kernel = build(roller.tensor((), name="x") + 1, "toy")
    for value in (np.array(2, F32), np.float32(2), *([torch.tensor(2.0)] if torch is not None else [])):
        assert float(kernel(value)) == 3.0


def test_constants_leave_the_signature(toy, tmp_path):
    a, b = arrays()
    x, w = roller.tensor((5, 6), name="x"), roller.tensor((6, 7), name="w")
    kernel = build(ops.relu(ops.matmul(x, w)), "toy", constants={"w": b if torch is None else torch.from_numpy(b)})
    kept = b.copy()
    b[...] = 0  # the kernel holds the values of then
    assert [t.name for t in kernel.inputs] == ["x"] and right(kernel(a), a, kept)
    with pytest.raises(LaunchError, match="fixed when the kernel was compiled"):
        kernel(a, w=b)
    kernel.save(tmp_path / "k.roller")
    assert right(roller.load(tmp_path / "k.roller")(a), a, kept)


# --- the kernel as a value -------------------------------------------------------------------------------------------


def test_attributes(kernel):
    assert repr(kernel) == "<Kernel (a: float32 (5, 6), b: float32 (6, 7)) -> float32 (5, 7) for toy:one>"
    assert kernel.candidates[0].program == kernel.program and kernel.estimate.seconds > 0
    assert [t.name for t in kernel.inputs] == ["a", "b"] and kernel.output.shape == (5, 7)
    assert kernel.source.startswith("{") and kernel.artifact.resources["lines"] == 1
    with pytest.raises(KernelError, match="cannot show assembly"):
        _ = kernel.assembly
    assert kernel.source_in("json") == kernel.source
    with pytest.raises(KernelError, match="the toy device writes json, not hip-c\\+\\+"):
        kernel.source_in("hip-c++")
    assert kernel.load() is kernel


def test_a_loaded_kernel_is_the_same_kernel(kernel, tmp_path):
    path = tmp_path / "k.roller"
    kernel.save(path)
    again = roller.load(path)
    assert isinstance(again, Kernel) and again.artifact == kernel.artifact
    assert again.program == kernel.program and again.estimate == kernel.estimate and again.expr == kernel.expr
    assert str(again.explain()).splitlines()[0] == str(kernel.explain()).splitlines()[0]
    assert again.source == kernel.source and len(again.candidates) == 1
    a, b = arrays()
    assert right(again(a, b), a, b)


def test_explanations_fit_the_page_and_are_plain_data(kernel):
    explanation = kernel.explain()
    text = str(explanation)
    assert max(map(len, text.splitlines())) <= 100
    stage = explanation.to_dict()["stages"][0]
    assert stage["name"] == "relu" and stage["levels"][-1]["level"] == "register"
    stops = stage["levels"][-1]["stops"]
    assert {s["dim"] for s in stops} == {"m", "n", "k"} and all(s["reason"] for s in stops)
    used, room = stage["levels"][-1]["footprint_bytes"], stage["levels"][-1]["usable_bytes"]
    assert 0 < used <= room
    assert "bound by" in text and kernel.estimate.bound_by in text


def test_loading_happens_once_under_many_threads(kernel, toy, monkeypatch):
    loads = []
    original = toy.load_kernel
    monkeypatch.setattr(toy, "load_kernel", lambda a: loads.append(a) or original(a))
    a, b = arrays()
    results = []
    threads = [threading.Thread(target=lambda: results.append(kernel(a, b))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1 and len(results) == 8 and all(right(r, a, b) for r in results)


def test_importing_roller_or_asking_for_help_imports_neither_tvm_nor_torch():
    code = (
        "import sys, roller, roller.cli; roller.devices(); roller.specs(); roller.load_spec('zen3')\n"
        "try: roller.cli.app.app(['--help'])\nexcept SystemExit: pass\n"
        "bad = [m for m in ('tvm', 'tvm_ffi', 'torch', 'jax', 'click') if m in sys.modules]\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, timeout=60)


def test_explanations_list_kernels_only_where_resources_say_how_they_are_launched() -> None:
    """Resources have names of the plugin's choice: threads may be something else."""
    assert list(_kernels({"pool.threads": 3, "k.registers": 7})) == []
    (report,) = _kernels({"k.threads": 32, "k.blocks": 1})
    assert str(report) == "k: 1 block of 32 threads"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda kernel: pickle.loads(pickle.dumps(kernel))])
def test_kernels_are_copied_and_pickled(copied):
    x = ops.tensor((5, 3), "float32", "x")
    kernel = roller.compile(ops.relu(x) * 2.0, "cpu")
    other = copied(kernel)
    given = np.arange(-7, 8, dtype=np.float32).reshape(5, 3)
    assert other is not kernel and other.source == kernel.source and other.estimate == kernel.estimate
    assert np.array_equal(other(given), 2 * np.maximum(given, 0)) and np.array_equal(kernel(given), other(given))
