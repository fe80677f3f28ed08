"""Which operators the GPU benchmark runs, and in what order; what it says where torch is missing."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.cuda.platform import PLATFORM
from bench.gpu import child, operators, package
from bench.gpu.expressions import expression
from bench.gpu.operators import Operator
from roller import ops

ROOT = Path(__file__).parents[2]
ALL = operators.operators()


def test_the_first_of_every_family_come_first_and_the_most_telling_of_it_at_that() -> None:
    families = list(operators.TIERS)
    assert [op.family for op in ALL[: len(families)]] == families, "one of each, in the order of the families"
    assert ALL[0].id == "fp16 4096x4096x4096"
    assert {"fp16 1x8192x8192", "fp16 4095x4095x4095", "fp16 4096x4096x4096 NT"} <= {op.id for op in ALL[: len(families)]}
    later = [operators.TIERS[op.family] for op in ALL[len(families) :]]
    assert later == sorted(later)
    assert len({op.id for op in ALL}) == len(ALL)


def test_what_people_run_is_among_them() -> None:
    ids = {op.id for op in ALL}
    for short in ("fp16", "bf16"):
        assert {f"{short} 4096x4096x4096{turns}" for turns in ("", " NT", " TN", " TT")} <= ids
    assert {f"int8 4096x4096x4096 {turns}" for turns in ("NN", "NT")} <= ids
    kinds = {(op.kind, op.channels_last) for op in ALL}
    assert {("conv2d", True), ("conv2d", False), ("softmax", False), ("layer_norm", False), ("attention", False)} <= kinds
    assert any(op.kind == "reduce_sum" and op.dtype == "float16" for op in ALL)
    assert any(op.kind == "matmul" and op.shapes["a"][0] == 1 and op.options.get("transpose_b") for op in ALL)


@pytest.mark.parametrize("op", ALL, ids=lambda op: op.id)
def test_their_shapes_and_depth_are_rollers(op: Operator) -> None:
    made = ops.expression(expression(op))
    assert (tuple(made.output.shape), made.output.dtype) == (op.output, op.out_dtype)
    if op.kind in ("matmul", "batch_matmul", "conv2d", "depthwise", "reduce_sum"):
        (stage,) = [s for s in made.stages if s.reduced]
        assert op.depth == math.prod(axis.extent for axis in stage.reduced)


def test_a_package_is_read_in_that_order_whatever_its_files_are_called(tmp_path: Path) -> None:
    some = [ALL[n] for n in (3, 0, 40, 7)]
    package.write_json(tmp_path / "manifest.json", {"schema": package.SCHEMA, "device": "cuda"})
    for name, op in zip("dcba", some, strict=True):
        table = {"operator": op.to_json(), "chip": "h100", "status": "ok", "reason": "", "fingerprint": "", "roofline_s": 0.0}
        package.write_json(tmp_path / "cases" / "h100" / f"{name}.json", {**table, "programs": []})
    found = package.Package(tmp_path, PLATFORM).entries("h100")
    assert [e.operator.id for e in found] == [ALL[n].id for n in (0, 3, 7, 40)]


def test_without_torch_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    about = {"schema": package.SCHEMA, "device": "cuda", "chips": {}, "versions": {}, "date": ""}
    package.write_json(tmp_path / "package" / "manifest.json", about)
    paths = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "-m", "bench.cuda.run", str(tmp_path / "package"), "--quick"]
    done = subprocess.run(command, env={**os.environ, **paths}, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == child.REFUSED
    assert (
        done.stderr.startswith("PyTorch is missing: install a build for cuda (https://pytorch.org") and done.stderr.count("\n") == 1
    )
