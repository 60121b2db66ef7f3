"""Fixtures that every test may use, and the rule for GPU tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED_DATA = Path(os.environ.get("VDALI_TEST_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with photos/, awkward/, models/ and masks/; the test is skipped where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no test data at {SHARED_DATA}: set VDALI_TEST_DATA")
    return SHARED_DATA
