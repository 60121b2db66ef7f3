"""How tests marked ``gpu`` behave where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from vdali.engine.gpu_probe import probe_gpu

SMOKE = Path(__file__).with_name("test_gpu_smoke.py")


def pytest_without_gpu(**environment: str) -> subprocess.CompletedProcess[str]:
    if probe_gpu().count:
        pytest.skip("this machine has a GPU")
    return subprocess.run(
        [sys.executable, "-m", "pytest", str(SMOKE), "-q", "-p", "no:cacheprovider"],
        capture_output=True,
        text=True,
        cwd=SMOKE.parents[2],
        env={**os.environ, **environment},
    )


def test_without_a_gpu_they_are_skipped_and_say_why():
    found = pytest_without_gpu(VDALI_REQUIRE_GPU="")
    assert found.returncode == 0
    assert "skipped" in found.stdout
    assert "passed" not in found.stdout
    assert f"needs a GPU: {probe_gpu().reason[:30]}" in found.stdout


def test_where_a_gpu_is_required_they_fail_and_say_why():
    found = pytest_without_gpu(VDALI_REQUIRE_GPU="1")
    assert found.returncode == 1
    assert "VDALI_REQUIRE_GPU=1, but no" in found.stdout
    assert "skipped" not in found.stdout
    assert "passed" not in found.stdout
