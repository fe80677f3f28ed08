import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
from typer.testing import CliRunner

import roller
from roller import ops
from roller.cli.app import app
from roller.cli.grammar import parse
from roller.device.plugins import Device
from roller.errors import (
    CodegenError,
    ConstructionError,
    DeviceUnavailableError,
    ExpressionError,
    HookError,
    KernelError,
    PluginLoadError,
    WrongResultError,
)
from roller.runtime.artifact import Artifact
from roller_cuda.toolchain import compiling


def run(*words, **options):
    return CliRunner().invoke(app, list(words), **options)


def expr(words, dtype="float32"):
    return ops.expression(parse(words, dtype))


def t(*shape, dtype="float32"):
    return roller.tensor(shape, dtype)


# --- the grammar -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("matmul 64x32 32x8", ops.matmul(t(64, 32), t(32, 8))),
        ("matmul(64,8,32)", ops.matmul(t(64, 32), t(32, 8))),
        ("matmul( 64x32 , 32x8 )", ops.matmul(t(64, 32), t(32, 8))),
        ("matmul 32x64 8x32 transpose_a=true transpose_b=True", ops.matmul(t(32, 64), t(8, 32), True, True)),
        ("mk,kn->mn 6x3 3x8", ops.einsum("mk,kn->mn", t(6, 3), t(3, 8))),
        ("einsum mk,kn->mn 6x3 3x8", ops.einsum("mk,kn->mn", t(6, 3), t(3, 8))),
        ('einsum("mk,kn->mn",6x3,3x8)', ops.einsum("mk,kn->mn", t(6, 3), t(3, 8))),
        ("conv2d 1x3x8x8 4x3x3x3 stride=2 padding=(1,1)", ops.conv2d(t(1, 3, 8, 8), t(4, 3, 3, 3), 2, (1, 1))),
        ("conv2d 1x8x8x3 3x3x3x4 layout=NHWC", ops.conv2d(t(1, 8, 8, 3), t(3, 3, 3, 4), layout="NHWC")),
        ("relu(matmul(64x32,32x8))", ops.relu(ops.matmul(t(64, 32), t(32, 8)))),
        ("avg_pool2d 1x3x8x8 3 2", ops.avg_pool2d(t(1, 3, 8, 8), 3, 2)),
        ("clip 64 0 6", ops.clip(t(64), 0, 6)),
        ("mk,k->m 64x32 32", ops.einsum("mk,k->m", t(64, 32), t(32))),
        ("reduce_sum 64x32 axes=1 keepdims=true", ops.reduce_sum(t(64, 32), 1, True)),
        ("mul 64 0.5", ops.mul(t(64), 0.5)),
        ("add 4x4:int8 4x4:int8", ops.add(t(4, 4, dtype="int8"), t(4, 4, dtype="int8"))),
        ("exp 7:float64", ops.exp(t(7, dtype="float64"))),
        ("transpose 2x3x4 axes=(2,0,1)", ops.transpose(t(2, 3, 4), (2, 0, 1))),
        ("reduce_max 0x4 axes=1", ops.reduce_max(t(0, 4), 1)),
    ],
)
def test_operators_are_read(words, meant):
    assert expr(words.split(" ")) == ops.expression(meant)


def test_the_default_type_is_that_of_unmarked_shapes():
    assert [i.dtype for i in expr(["add", "4x4:float64", "4x4:float64"], "int8").inputs] == ["float64"] * 2
    assert [i.dtype for i in expr(["matmul", "4x4", "4x4"], "int8").inputs] == ["int8"] * 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no operator given"),
        (["matmull", "4x4", "4x4"], "did you mean 'matmul'"),
        (["zzz"], "computes nothing"),
        (["zzz()"], "operators: "),
        (["matmul", "4x4"], "it takes \\(a, b, transpose_a"),
        (["matmul", "4x4", "4x4", "colour=3"], "colour"),
        (["matmul", "4x4", "5x4"], "disagree on k"),
        (["relu(4x4"], "'\\)' expected, found 'the end'"),
        (["relu(4x4))"], "nothing more expected"),
        (["relu(4x4;)"], "column 9: unexpected ';'"),
        (["relu(=)"], "a value expected"),
        (["4x4"], "computes nothing"),
        (["relu", "-4"], "negative"),
        (["relu", "4x4:float99"], "unknown element type 'float99'"),
        (["__import__('os')"], "no operator called"),
        (["expression(4x4)"], "no operator called"),
        (["from_te(4x4)"], "no operator called"),
        (["relu(" * 60 + "4x4" + ")" * 60], "nested"),
        (["relu", "banana"], "relu"),
        (["matmul", "4x4", "4x4", "transpose_a=no"], "transpose_a is true or false, not 'no'"),
        (["matmul(4x4, 4x4, 1)"], "transpose_a is true or false, not 1"),
        (["conv2d", "1x3x8x8", "4x3x3x3", "stride=banana"], "conv2d|stride"),
        (["conv2d", "1x3x8x8", "4x3x3x3", "stride="], "a value expected"),
        (["mk,kn->mn", "4x4"], "einsum"),
    ],
)
def test_what_is_no_operator(words, said):
    with pytest.raises(ExpressionError, match=said):
        parse(words)


# --- commands --------------------------------------------------------------------------------------------------------


def test_compile_explain_and_a_saved_kernel(tmp_path):
    path = tmp_path / "k.roller"
    done = run("compile", "relu(matmul(24x16, 16x32))", "-d", "cpu:x86-64-v3", "-o", str(path), "--format", "json", "--top", "3")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data["schema_version"] == 1 and data["command"] == "compile" and data["saved"] == str(path)
    assert data["chip"] == "x86-64-v3" and 1 <= len(data["candidates"]) <= 3 and data["estimate"]["seconds"] > 0
    kernel = roller.load(path)
    a, b = np.ones((24, 16), "f4"), np.ones((16, 32), "f4")
    assert np.array_equal(kernel(a, b), np.full((24, 32), 16, "f4"))
    table = run("explain", str(path))
    assert table.exit_code == 0 and "bound by" in table.stdout and max(map(len, table.stdout.splitlines())) <= 100
    told = json.loads(run("explain", str(path), "--format", "json").stdout)
    assert told["stages"][0]["name"] == "relu"
    assert run("explain", str(path), "-d", "cpu").exit_code == run("explain", str(path), "-d", "cpu:x86-64-v3").exit_code == 0
    for option in (("-d", "cuda:a100"), ("-d", "cpu:zen4"), ("--dtype", "float16"), ("--top", "3")):
        refused = run("explain", str(path), *option)
        assert refused.exit_code == 2 and "is a kernel already, for cpu:x86-64-v3" in " ".join(
            refused.output.replace("│", "").split()
        )


def test_files_that_cannot_be_written_are_refused_before_anything_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(roller, "compile", lambda *_, **__: pytest.fail("compiled"))
    for option in ("--output", "--source"):
        done = run("compile", "exp", "100", "-d", "cpu:zen3", option, str(tmp_path / "nowhere" / "k"))
        assert done.exit_code == 2 and "there is no folder" in done.output


def test_compile_prints_a_table():
    done = run("compile", "exp", "100", "--device", "cpu:zen3", "--threads", "1")
    assert done.exit_code == 0 and "float32 (100,)" in done.stdout and "predicted" in done.stdout


def test_compile_writes_the_text(tmp_path):
    path = tmp_path / "k.txt"
    done = run("compile", "exp", "100", "-d", "cpu:zen3", "--source", str(path))
    assert done.exit_code == 0 and "its text is in" in done.stdout
    assert path.read_text() == roller.compile(ops.exp(t(100)), "cpu:zen3").source
    done = run("compile", "exp", "100", "-d", "rocm:mi300x", "--source", str(path), "--language", "hip-c++", "--format", "json")
    assert done.exit_code == 0 and json.loads(done.stdout)["source"] == str(path)
    assert "#include <hip/hip_runtime.h>" in path.read_text()
    refused = run("compile", "exp", "100", "-d", "cpu:zen3", "--source", str(path), "--language", "hip-c++")
    assert refused.exit_code == 6 and "device writes" in refused.stderr
    assert run("compile", "exp", "100", "-d", "cpu:zen3", "--language", "hip-c++").exit_code == 2


def test_bench_measures():
    done = run("bench", "matmul", "24x16", "16x32", "-d", "cpu:x86-64-v3", "--seconds", "0.05", "--format", "json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data["measured_s"] > 0 and data["gflops"] > 0


def test_what_a_device_lacks_is_shown_as_it_is_written(monkeypatch):
    monkeypatch.setattr(Device, "requirements", lambda self: ("pip install 'roller-compiler[cuda]'",))
    assert "'roller-compiler[cuda]'" in run("devices").stdout


def test_verify_compares_here_or_on_an_emulator(tmp_path):
    done = run("verify", "relu(matmul(12x7, 7x9))", "--format", "json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["verified"] and json.loads(done.stdout)["where"] == "device"
    assert "right on the device" in run("verify", "relu", "12").stdout
    other = run("verify", "matmul", "24x16", "16x32", "--dtype", "int8", "-d", "cpu:zen4", "--emulate")
    assert other.exit_code == 0 and "right on the emulator" in other.stdout
    refused = run("verify", "relu", "12", "-d", "ipu_sim", "--emulate")
    assert refused.exit_code == 4 and "device 'ipu_sim' has no emulator" in refused.stderr


def test_what_may_be_rounded_is_said_and_checked():
    done = run("verify", "matmul", "24x16", "16x32", "-d", "cpu", "--precision", "tf32")
    assert done.exit_code == 0, done.output
    assert "factors rounded to tfloat32" in done.stdout
    explained = run("explain", "matmul", "24x16", "16x32", "-d", "cpu:x86-64-v3", "--precision", "tf32", "--format", "json")
    assert json.loads(explained.stdout)["stages"][0]["factor_dtype"] == "tfloat32"


@pytest.mark.skipif(bool(compiling.problems()) or shutil.which("g++") is None, reason="needs NVRTC and g++")
def test_verify_needs_no_gpu_for_its_kernel():
    done = run("verify", "matmul", "24x16", "16x32", "--dtype", "float16", "-d", "cuda:a100", "--emulate")
    assert done.exit_code == 0, done.output
    assert "right on the emulator" in done.stdout and "cuda:a100" in done.stdout
    done = run("verify", "matmul", "32x64", "64x32", "-d", "cuda:a100", "--emulate", "--precision", "tf32")
    assert done.exit_code == 0 and "tfloat32" in done.stdout, done.output


@pytest.mark.parametrize("number", ["-1e9", "-0.5", "-2.5e-3"])
def test_operands_may_be_negative_numbers(number):
    done = run("explain", "maximum", "64", number)
    assert done.exit_code == 0, done.output
    assert "must be a sequence of non-negative integers" in run("explain", "maximum", "64", "-1").stderr
    assert run("explain", "maximum", "64", "-x").exit_code == 2 == run("explain", "relu", "64", "--top", number).exit_code


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["compile"], 2, "OPERATOR"),
        (["compile", "relu", "8", "--top", "0"], 2, "top"),
        (["nonsense"], 2, "nonsense"),
        (["compile", "mtmul", "4x4"], 3, "did you mean"),
        (["compile", "relu", "8", "--precision", "tf16"], 3, "unknown precision 'tf16'"),
        (["compile", "relu", "8", "-d", "cpu:zem3"], 3, "did you mean 'zen3'"),
        (["compile", "relu", "8", "--spec", "none.toml"], 3, "none.toml: no such file"),
        (["compile", "relu", "8", "-d", "cpu:zen3", "--threads", "99"], 3, "threads"),
        (["explain", "none.roller"], 3, "none.roller: cannot be read"),
        (["specs", "show", "h1000"], 3, "did you mean 'h100'"),
        (["compile", "relu", "8", "-d", "cpq"], 4, "did you mean 'cpu'"),
        (["specs", "calibrate", "gpu"], 4, "installed"),
    ],
)
def test_exit_codes_of_wrong_input(words, code, said):
    done = run(*words)
    assert done.exit_code == code and said in done.stderr and done.stdout == ""
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (WrongResultError("wrong", (1,), 2.0), 1),
        (PluginLoadError("no", "x"), 4),
        (DeviceUnavailableError("no"), 4),
        (HookError("no", "x", "h"), 5),
        (ConstructionError("no"), 5),
        (CodegenError("no"), 5),
        (KernelError("crashed its process: SIGSEGV"), 6),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes_of_failures(error, code, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(roller, "compile", fail)
    done = run("compile", "relu", "8")
    assert done.exit_code == code and done.stdout == ""


def test_all_words_may_stand_in_one_pair_of_quotes():
    for words in (["matmul", "64x32", "32x8"], ["mk,kn->mn", "6x3", "3x8"], ["relu", "8"]):
        assert expr([" ".join(words)]) == expr(words)
    assert "no operator called 'softmax'" in run("compile", "softmax 4x5").stderr


def test_where_a_mistake_is_comes_before_what_it_is():
    assert "operator 'relu(8', column 7: ')' expected, found 'the end'" in run("compile", "relu(8").stderr


def test_version():
    assert run("--version").stdout.strip() == roller.__version__


def test_the_command_itself_and_ctrl_c(tmp_path):
    command = [sys.executable, "-c", "from roller.cli import main; main()"]
    done = subprocess.run([*command, "specs", "list", "cpu"], capture_output=True, text=True, timeout=60, check=True)
    assert "zen3" in done.stdout and done.stderr == ""
    code = (  # whoever runs the tests in the background may have told all its children to ignore Ctrl-C
        "import roller, signal, time\nfrom roller.cli import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def wait(*a, **k):\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "roller.compile = wait\nmain()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, "compile", "relu", "8"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert child.stdout.readline() == "ready\n"
    os.kill(child.pid, signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 130 and "interrupted" in err and list(tmp_path.iterdir()) == []


def test_a_terminal_shows_what_a_long_compilation_is_at(tmp_path):
    """On stderr alone, and only where somebody watches: a file or a pipe gets nothing."""
    command = [sys.executable, "-m", "roller", "compile", "relu", "8", "--measure", "--top", "2"]
    watched, side = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    done = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=side, text=True, cwd=tmp_path, env=environment)
    os.close(side)
    shown = b""
    with suppress(OSError):  # what reading a terminal gives whose other side is closed
        while part := os.read(watched, 4096):
            shown += part
    os.close(watched)
    out, _ = done.communicate(timeout=120)
    assert done.returncode == 0
    assert b"timing 2 programs" in shown  # for two seconds; shorter steps may come and go between two pictures
    assert "timing" not in out
    quiet = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, timeout=120)
    assert quiet.stderr == "" and quiet.stdout


def test_steps_are_there_for_loggers(caplog):
    with caplog.at_level("INFO", logger="roller.step"):
        roller.compile(ops.relu(t(8)), verify=True)
    assert [r.getMessage() for r in caplog.records] == [
        "constructing programs",
        "building the kernel",
        "comparing with the reference",
    ]


def test_a_shown_spec_is_a_spec_file(tmp_path):
    shown = run("specs", "show", "cpu:zen3")
    copy = tmp_path / "copy.toml"
    copy.write_text(shown.stdout)
    assert roller.load_spec(copy) == roller.load_spec("cpu:zen3")


# --- where results go -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--output", "--source"])
def test_what_is_no_regular_file_stays_what_it_is(option, tmp_path, monkeypatch):
    """A pipe, as a device would be: a file would take its name. Nothing is compiled for it."""
    monkeypatch.setattr(roller, "compile", lambda *_, **__: pytest.fail("compiled"))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "link"
    link.symlink_to(pipe)
    for path in (pipe, link):
        done = run("compile", "exp", "100", "-d", "cpu:zen3", option, str(path))
        assert done.exit_code == 2 and "no regular file" in " ".join(done.output.replace("│", "").split())
    done = run("compile", "exp", "100", "-d", "cpu:zen3", option, str(tmp_path))
    assert done.exit_code == 2
    assert pipe.is_fifo() and link.is_symlink() and sorted(tmp_path.iterdir()) == [link, pipe]


def test_math_is_an_option():
    for said in ("strict", "fast"):
        assert run("verify", "div", "16", "3.5", "-d", "cpu:x86-64-v3", "--math", said).exit_code == 0
    refused = run("compile", "exp", "16", "-d", "cpu:x86-64-v3", "--math", "quick")
    assert refused.exit_code != 0 and "choose one of ieee, strict, fast" in " ".join(refused.output.replace("│", "").split())


def test_a_link_stays_a_link(tmp_path):
    kernel = roller.compile(ops.exp(t(100)), "cpu:x86-64-v3")
    there, link, dangling = tmp_path / "there", tmp_path / "link", tmp_path / "dangling"
    there.write_bytes(b"old")
    link.symlink_to(there)
    dangling.symlink_to(tmp_path / "new")
    for path in (link, dangling):
        kernel.save(path)
        assert path.is_symlink() and roller.load(path).output == kernel.output
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dangling", "link", "new", "there"]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(roller.RollerError, match="no regular file"):
        kernel.save(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_a_dash_is_standard_output(tmp_path):
    command = [sys.executable, "-m", "roller", "compile", "exp", "100", "-d", "cpu:x86-64-v3"]
    made = subprocess.run([*command, "--output", "-"], capture_output=True, check=True, cwd=tmp_path).stdout
    assert Artifact.from_bytes(made).to_bytes() == made
    text = subprocess.run([*command, "--source", "-"], capture_output=True, check=True, cwd=tmp_path, text=True).stdout
    assert text == roller.compile(ops.exp(t(100)), "cpu:x86-64-v3").source
    for more in (("--output", "-", "--source", "-"), ("--output", "-", "--format", "json")):
        refused = run("compile", "exp", "100", "-d", "cpu:x86-64-v3", *more)
        assert refused.exit_code == 2 and "standard output as well" in " ".join(refused.output.replace("│", "").split())
    assert not list(tmp_path.iterdir())
