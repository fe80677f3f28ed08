"""Machine code that roller links and maps itself."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import launching
import roller
from roller import ops
from roller.errors import CodegenError, LaunchError
from roller.program.rprogram import RProgram
from roller_cpu.runtime import mapping, runner
from roller_cpu.toolchain import compiling, entry_points, formats, linking, processors

SPEC = roller.load_spec("cpu:x86-64-v3")
HEAD = f'target datalayout = "{compiling.data_layout("x86_64-unknown-linux-gnu")}"\ntarget triple = "x86_64-unknown-linux-gnu"\n'
FLAGS = '!llvm.module.flags = !{!0}\n!0 = !{i32 4, !"tvm_target", !"{\\22kind\\22:\\22llvm\\22}"}\n'


def loaded(body: str, *names: str) -> mapping.MappedImage:
    """The functions of a module of LLVM IR, linked and mapped."""
    text = HEAD + body.replace("#0", '"target-cpu"="x86-64"') + "\n" + FLAGS
    image = linking.link(compiling.object_file(text), names)
    return mapping.MappedImage(image.content, image.layout())


def regions(image: mapping.MappedImage) -> list[str]:
    """The system's protections of an image's pages, in order."""
    begin, end, found = image._base, image._base + image._bytes, []
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(word, 16) for word in line.split()[0].split("-"))
        if first < end and begin < last:
            found.append(line.split()[1])
    return found


def test_code_runs_but_cannot_be_written_and_data_is_written_but_cannot_run() -> None:
    image = loaded("@kept = internal global i32 41\ndefine i32 @f(ptr %p) #0 {\n %v = load i32, ptr @kept\n %w = add i32 %v, 1\n"
                   " store i32 %w, ptr @kept\n ret i32 %w\n}", "f")  # fmt: skip
    f = image.function("f")
    assert [f(0), f(0)] == [42, 43]
    assert sorted({flags[:3] for flags in regions(image)}) == ["r-x", "rw-"]


def test_no_page_of_a_kernel_is_writable_and_executable() -> None:
    kernel = roller.compile(ops.gelu(ops.matmul(roller.tensor((64, 64)), roller.tensor((64, 64)))), "cpu:x86-64-v3").load()
    image = kernel._runner._runner._run.image  # type: ignore[union-attr]
    found = [flags[:3] for flags in regions(image)]
    assert found == ["r-x", "r--", "rw-"]


def test_everything_that_code_may_refer_to_is_bound() -> None:
    """Functions elsewhere, directly and by their address; constants; places of the image itself, as words in constants and data."""
    image = loaded(
        """
@words = internal constant [2 x ptr] [ptr @one, ptr @two]
@moved = internal global ptr @words
@text = private constant [4 x i8] c"123\\00"
@float = internal constant double 4.0
declare i32 @atoi(ptr)
declare double @sqrt(double)
declare i32 @abs(i32)
define internal i32 @one() noinline #0 { ret i32 1 }
define internal i32 @two() noinline #0 { ret i32 2 }
define i32 @indirect(ptr %p) #0 {
  %words = load volatile ptr, ptr @moved
  %at = getelementptr ptr, ptr %words, i64 1
  %f = load ptr, ptr %at
  %v = call i32 %f()
  ret i32 %v
}
define i32 @calls(ptr %p) #0 {
  %a = call i32 @atoi(ptr @text)
  %x = load volatile double, ptr @float
  %s = call double @sqrt(double %x)
  %b = fptosi double %s to i32
  %c = add i32 %a, %b
  ret i32 %c
}
define i32 @address(ptr %p) #0 {
  %f = load volatile ptr, ptr @pointer
  %v = call i32 %f(i32 -7)
  ret i32 %v
}
@pointer = internal global ptr null
define i32 @take(ptr %p) #0 {
  store ptr @abs, ptr @pointer
  ret i32 0
}
""",
        "indirect", "calls", "address", "take",
    )  # fmt: skip
    assert image.function("indirect")(0) == 2 and image.function("calls")(0) == 125
    assert image.function("take")(0) == 0 and image.function("address")(0) == 7


def test_two_loads_of_an_image_share_nothing() -> None:
    body = "@n = internal global i32 0\ndefine i32 @f(ptr %p) #0 {\n %v = load i32, ptr @n\n %w = add i32 %v, 1\n"
    body += " store i32 %w, ptr @n\n ret i32 %w\n}"
    first, second = loaded(body, "f").function("f"), loaded(body, "f").function("f")
    assert [first(0), first(0), second(0)] == [1, 2, 1]


def test_functions_that_nobody_has_are_named() -> None:
    with pytest.raises(LaunchError, match="the kernel calls nobody_has_this, which no library of this machine has"):
        loaded("declare i32 @nobody_has_this()\ndefine i32 @f(ptr %p) #0 {\n %v = call i32 @nobody_has_this()\n ret i32 %v\n}", "f")
    with pytest.raises(CodegenError, match="has no function g"):
        loaded("define i32 @f(ptr %p) #0 {\n ret i32 0\n}", "g")


def test_memory_is_freed_with_the_last_function() -> None:
    image = loaded("define i32 @f(ptr %p) #0 {\n ret i32 7\n}", "f")
    base, f = image._base, image.function("f")
    del image
    gc.collect()
    assert f(0) == 7
    del f
    gc.collect()
    assert not any(
        line.startswith(f"{base:x}-") and "x" in line.split()[1] for line in Path("/proc/self/maps").read_text().splitlines()
    )


def test_the_bytes_depend_on_the_program_alone() -> None:
    op = ops.relu(ops.matmul(roller.tensor((32, 48), name="a"), roller.tensor((48, 64), name="b")))
    code = (
        "import roller, hashlib\nfrom roller import ops\n"
        "op = ops.relu(ops.matmul(roller.tensor((32, 48), name='a'), roller.tensor((48, 64), name='b')))\n"
        "print(hashlib.sha256(roller.compile(op, 'cpu:x86-64-v3').artifact.data).hexdigest())"
    )
    told = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in range(2)}
    import hashlib

    assert told == {hashlib.sha256(roller.compile(op, "cpu:x86-64-v3").artifact.data).hexdigest() + "\n"}


def test_a_saved_kernel_runs_without_tvm(tmp_path: Path) -> None:
    """With parallel loops too: of TVM only the libraries of its thread pool are loaded."""
    op = ops.matmul(roller.tensor((256, 256), name="a"), roller.tensor((256, 256), name="b"))
    roller.compile(op, "cpu:x86-64-v3", threads=2).save(tmp_path / "k.roller")
    code = (
        f"import sys, numpy as np, roller\nk = roller.load({str(tmp_path / 'k.roller')!r})\n"
        "a = np.eye(256, dtype='f4'); b = np.arange(65536, dtype='f4').reshape(256, 256)\n"
        "assert np.array_equal(k(a, b), b) and 'define' in k.source\n"
        "print(sorted({'tvm', 'tvm_ffi', 'torch', 'elftools'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.fixture(scope="module")
def product() -> RProgram:
    op = ops.relu(ops.matmul(roller.tensor((33, 40), name="a"), roller.tensor((40, 29), name="b")))
    return roller.compile(op, "cpu:x86-64-v3", threads=1).program


def test_processors_without_a_linker_of_ours_get_their_ir(product: RProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on ARM: LLVM compiles it when it is loaded, and the result is the same."""
    arrays = {"a": np.arange(1320, dtype="f4").reshape(33, 40) % 7, "b": np.arange(1160, dtype="f4").reshape(40, 29) % 5 - 2}
    monkeypatch.setattr(compiling, "LINKED", ())
    built = launching.artifact(SPEC, product)
    assert built.format == formats.IR and built.data.decode() == built.source
    launching.check(product.expr, built, arrays)
    with pytest.raises(CodegenError, match="LLVM refuses"):
        runner.CpuRunner(replace(built, data=built.data.replace(b"define dllexport", b"define nonsense")))


def test_ir_with_constants_is_prepacked_when_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "LINKED", ())
    values = np.arange(96 * 64, dtype="f4").reshape(96, 64) % 5
    op = ops.matmul(roller.tensor((8, 96), name="x"), roller.tensor((96, 64), name="w"))
    kernel = roller.compile(op, "cpu:x86-64-v3", constants={"w": values})
    assert kernel.artifact.format == formats.IR and kernel.artifact.launch["panels"]
    assert np.array_equal(kernel(np.ones((8, 96), "f4")), np.ones((8, 96), "f4") @ values)


def test_foreign_processors_are_built_as_ir(product: RProgram) -> None:
    spec = roller.load_spec("cpu:neoverse-v2")
    built = roller.compile(ops.relu(roller.tensor((64,))), spec=spec).artifact
    assert built.format == formats.IR and "neon" in built.launch["requires"]


@pytest.mark.parametrize("kind", ["writable and executable", "a relocation of type"])
def test_what_an_image_cannot_hold_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        HEAD
        + 'define i32 @f(ptr %p) "target-cpu"="x86-64" {\n %v = load i32, ptr @c\n ret i32 %v\n}\n@c = internal constant i32 3\n'
    )
    obj = bytearray(compiling.object_file(text.replace("internal constant", "global") + FLAGS))
    if kind.startswith("writable"):
        monkeypatch.setattr(linking, "_WRITE", 0x4)  # every executable section looks writable
        monkeypatch.setattr(linking, "_EXECUTE", 0x4)
    else:
        monkeypatch.setattr(linking, "_SLOTS", ())
        monkeypatch.setattr(linking, "_DISTANCE", 99)
    with pytest.raises(CodegenError, match=kind):
        linking.link(bytes(obj), ("f",))


@pytest.mark.parametrize(
    "change",
    [
        {"segments": [4096, 0, 0], "imports": {"abs": [4095]}},
        {"segments": [0, 0, 0]},
        {"exports": {"f": 1 << 40}},
        {"addresses": [[0, -8]]},
        {"segments": None},
        {"addresses": [[1]]},
    ],
)
def test_layouts_that_reach_beyond_their_memory_are_refused(change: dict[str, Any]) -> None:
    text = HEAD + 'define i32 @f(ptr %p) "target-cpu"="x86-64" {\n ret i32 0\n}\n' + FLAGS
    image = linking.link(compiling.object_file(text), ("f",))
    with pytest.raises(LaunchError, match="layout"):
        mapping.MappedImage(image.content, {**image.layout(), **change})


def test_the_needed_instruction_sets_are_recorded() -> None:
    kernel = roller.compile(ops.relu(roller.tensor((64,))), "cpu:x86-64-v3")
    wanted = kernel.artifact.launch["requires"]
    assert {"avx2", "fma", "f16c"} <= set(wanted) and tuple(wanted) == processors.instruction_sets(
        "x86-64-v3", "x86_64-unknown-linux-gnu"
    )


def test_sources_without_shortcut_and_panels_have_fewer_functions() -> None:
    launch: dict[str, Any] = {"inputs": [{"shape": [0, 3], "dtype": "float32"}], "output": {"shape": [0], "dtype": "float32"}}
    assert entry_points.names(launch) == ("roller_bind", "roller_run")
    launch = {"inputs": [{"shape": [2], "dtype": "float32"}], "output": {"shape": [2], "dtype": "float32"}, "alignment": "element"}
    assert entry_points.names(launch) == ("roller_bind", "roller_run", "roller_shortcut")
    text = entry_points.text(launch, "main", "x86-64", for_tvm=True)
    assert "roller_shortcut" not in text and len(re.findall("@__tvm_ffi_roller_", text)) == 2
