"""What all tests share: Hypothesis profiles, and the flag that rewrites golden files."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, settings

COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("dev", max_examples=10, phases=[p for p in Phase if p is not Phase.shrink], **COMMON)
settings.register_profile("ci", max_examples=30, derandomize=True, **COMMON)
settings.register_profile("long", max_examples=1000, **COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/* anew instead of comparing with it")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
