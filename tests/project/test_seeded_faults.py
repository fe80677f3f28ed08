"""The faults that are seeded to try the tests: each still stands for a place in the code, and there are ten of each kind."""

from collections import Counter

import pytest
from seeded_faults import FAULTS, ROOT, Fault, place


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_a_fault_exchanges_one_place(fault: Fault) -> None:
    text = (ROOT / fault.path).read_text(encoding="utf-8")
    assert text.count(fault.before) == 1 and fault.after != fault.before
    assert all((ROOT / place(test).partition("::")[0]).is_file() for test in fault.tests)


def test_there_are_thirty() -> None:
    kinds = Counter("ipu" if "ipu_sim" in f.path else "core or gpu" for f in FAULTS)
    assert len(FAULTS) == 30 and kinds["ipu"] == 10
