"""The commands `roller devices` and `roller specs`."""

import json

from test_cli import run

import roller
from roller.device.plugins import load_device


def test_devices_and_specs():
    devices = json.loads(run("devices", "--format", "json").stdout)["devices"]
    (cpu,) = (d for d in devices if d["device"] == "cpu")
    spec = load_device("cpu").default_spec()
    assert (cpu["usable"], cpu["state"], cpu["chip"], cpu["clock_ghz"]) == (True, "ready", spec.chip, spec.clock_ghz)
    assert cpu["numbers"].startswith("estimate: not measured (ROLLER_CALIBRATE=off)")
    assert "ROLLER_CALIBRATE=off" in run("devices", env={"COLUMNS": "400"}).stdout
    wrong = json.loads(run("devices", "--format", "json", env={"ROLLER_CALIBRATE": "sometimes"}).stdout)["devices"]
    assert [(d["usable"], d["chip"]) for d in wrong if d["device"] == "cpu"] == [(False, None)]
    alone = json.loads(run("devices", "--format", "json", env={"ROLLER_NUM_THREADS": "1"}).stdout)["devices"]
    if spec.unit.count > 1:
        assert [f"scaled to 1 of {spec.unit.count} cores" in d["numbers"] for d in alone if d["device"] == "cpu"] == [True]
    found = json.loads(run("specs", "list", "cuda", "--format", "json").stdout)["specs"]
    assert {"a100", "h100"} <= {e["chip"] for e in found} and {e["device"] for e in found} == {"cuda"}
    assert "zen5" in run("specs").stdout
    assert 'chip = "a100"' in run("specs", "show", "a100").stdout
    assert json.loads(run("specs", "show", "cuda:a100", "--format", "json").stdout)["spec"]["chip"] == "a100"
    assert run("specs", "lint", "a100", "zen5").exit_code == 0


def test_lint_fails_with_one(tmp_path):
    from roller.target.catalog import dump_spec

    bare = roller.load_spec("a100").model_copy(update={"sources": {}})
    (tmp_path / "a100.toml").write_text(dump_spec(bare))
    done = run("specs", "lint", str(tmp_path / "a100.toml"))
    assert done.exit_code == 1 and "no source" in done.stdout
