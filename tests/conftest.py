"""Fixtures that every test may use, and the rule for GPU tests."""

from __future__ import annotations

import os
import signal
from functools import cache
from pathlib import Path

import pytest
from vdali.engine.gpu_probe import GpuProbe, probe_gpu

SHARED_DATA = Path(os.environ.get("VDALI_TEST_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with photos/, awkward/, models/ and masks/; the test is skipped where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no test data at {SHARED_DATA}: set VDALI_TEST_DATA")
    return SHARED_DATA


@cache
def gpus() -> GpuProbe:
    """What this machine has, asked only when a GPU test comes up."""
    return probe_gpu()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked ``gpu`` is skipped without a GPU, and fails where VDALI_REQUIRE_GPU=1 promises one.

    Each test begins with Python's own handler of Ctrl-C, which tests send to themselves and to children: a shell that
    starts the tests in the background lets them ignore it, and compilers of kernels put theirs in its place.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if item.get_closest_marker("gpu") is None or gpus().count:
        return
    if os.environ.get("VDALI_REQUIRE_GPU") == "1":
        pytest.fail(f"VDALI_REQUIRE_GPU=1, but {gpus().reason}", pytrace=False)
    pytest.skip(f"needs a GPU: {gpus().reason}")
