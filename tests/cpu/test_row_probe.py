"""The probe of memory that is read in rows: its functions sum what they say, and its table has the shape of its rows and runs."""

import ctypes

import numpy as np
import pytest

from roller.plugin import address
from roller_cpu.chip import row_probe
from roller_cpu.chip.probing import area, module_text
from roller_cpu.chip.row_probe import Sums
from roller_cpu.toolchain import compiling, processors


def function_of(sums):
    return compiling.load_module(module_text([sums.text()], processors.host_processor()))[sums.name]


@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("run", [64, 128, 7168])
def test_every_element_is_summed_once(batch, run):
    """Of vectors of 16 bytes, a part of 128 bytes is summed at a time; results of one part are added to those of the next."""
    sums, blocks, batches = Sums(16, batch, run), 2, 3
    rows = blocks * batches * batch
    data, totals = area(rows * sums.length), area(sums.length)
    # Between the rows lie bytes that are not read: numbers that would be seen.
    values = data[: rows * sums.length].view(np.float32).reshape(rows, sums.length // 4)
    values[...] = np.arange(values.size).reshape(values.shape) % 7
    values[:, sums.whole // 4 :] = 1e6
    function_of(sums)(ctypes.c_void_p(address(data)), ctypes.c_void_p(address(totals)), batches, blocks)
    parts = values[:, : sums.whole // 4].reshape(rows, sums.whole // sums.run, sums.run // sums.part, sums.part // 4)
    wanted = parts.sum(axis=(0, 2))
    found = totals.view(np.float32)[: sums.whole // 4].reshape(sums.whole // sums.run, -1)
    assert np.array_equal(found[:, : sums.part // 4], wanted)


@pytest.mark.parametrize("run", row_probe.RUNS)
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_runs_are_whole_parts_and_rows_are_whole_runs(vector_bytes, run):
    sums = Sums(vector_bytes, row_probe.BATCH, run)
    assert run % sums.part == 0 and sums.part % vector_bytes == 0 and sums.whole % run == 0
    assert sums.length % row_probe.LINE == 0 and sums.length % 4096, "rows end their pages in turn"


@pytest.mark.parametrize("cores", [1, 2])
def test_a_table_has_a_share_for_each_number_of_rows_and_run(monkeypatch, cores):
    """Of a few small trials: what they say is of no importance, but the fastest has all of the bandwidth."""
    for name, value in (("ROWS", (1, 2)), ("RUNS", (64, 256)), ("TRIALS", 1), ("SECTION", 1 << 16)):
        monkeypatch.setattr(row_probe, name, value)
    found = row_probe.row_shares(cores, 16, processors.host_processor(), 1 << 18)
    assert (found.rows, found.run_bytes) == ((1, 2), (64, 256))
    shares = [share for line in found.shares for share in line]
    assert max(shares) == 1.0 and all(0 < share <= 1 for share in shares)
    assert all(round(share / row_probe.STEP) == pytest.approx(share / row_probe.STEP) for share in shares)
