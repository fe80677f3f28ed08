"""Settings of the kernel cache: environment variables."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ByteSize, TypeAdapter, ValidationError

from roller.errors import SettingError
from roller.storage import cache_dir

MODE, LIMIT = "ROLLER_CACHE", "ROLLER_CACHE_LIMIT"
MODES = ("rw", "ro", "off")
MOST_BYTES = 1 << 30  # budget of the folder; about 5000 kernels of CPUs


def mode() -> str:
    """Returns `ROLLER_CACHE`: "rw" (the default), "ro": nothing is written, or "off"; `SettingError` for another value."""
    said = (os.environ.get(MODE) or MODES[0]).strip().lower()
    if said not in MODES:
        raise SettingError(f"{MODE}={said!r} is none of {', '.join(MODES)}")
    return said


def most_bytes() -> int:
    """Returns `ROLLER_CACHE_LIMIT`, the most bytes that the folder holds, such as "500MB"; `SettingError` for another value."""
    said = os.environ.get(LIMIT)
    if said is None or not said.strip():
        return MOST_BYTES
    try:
        return int(TypeAdapter(ByteSize).validate_python(said.strip()))
    except ValidationError as error:
        raise SettingError(f'{LIMIT}={said!r} is no number of bytes, such as "500MB" or "2GiB"') from error


def folder() -> Path:
    """Returns the folder of the cache: `kernels` in `ROLLER_CACHE_DIR`, else in the platform's folder for caches."""
    return cache_dir() / "kernels"
