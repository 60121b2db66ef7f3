"""The lane of a real GPU: DALI's decode against its CPU twin, bad pictures, whole runs against the CPU's."""

from __future__ import annotations

import pytest

pytest.importorskip("nvidia.dali")

from vdali.benchmarks.gpu_check import part_dali, part_run
from vdali.benchmarks.gpu_check.record import Check

pytestmark = pytest.mark.gpu

LONG = ("overlapped", "alone", "speed")
"""What `make gpu-check` has time for."""

CHECKS = [
    check for part in (part_dali, part_run) for check in part.checks() if not any(word in check.name for word in LONG)
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_what_gpu_check_proves_in_short(check: Check):
    check.work()
