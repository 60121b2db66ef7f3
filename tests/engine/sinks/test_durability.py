"""Kills at any moment and full disks: what was committed stays, once, and the rest is written later."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

WRITER = Path(__file__).with_name("writer.py")
COUNT = 3000
PART_ROWS = 64


def vectors_by_id(out: Path, output_format: str) -> list[tuple[str, list[float]]]:
    """All rows of ``out``, read as a user would."""
    if output_format == "parquet":
        table = pq.read_table(out / "rows")
        return list(zip(table["id"].to_pylist(), table["embedding"].to_pylist(), strict=True))
    found = []
    for ids in sorted((out / "rows").glob("part-*.ids.parquet")):
        vectors = np.load(ids.with_name(ids.name.replace("ids.parquet", "embedding.npy")), mmap_mode="r")
        found += zip(pq.read_table(ids)["id"].to_pylist(), vectors.tolist(), strict=True)
    return found


def failed_ids(out: Path) -> list[str]:
    return pq.read_table(out / "failures")["id"].to_pylist() if any((out / "failures").glob("part-*")) else []


def check(out: Path, output_format: str, count: int, *, complete: bool) -> int:
    """Every id at most once, under its own vector; returns how many there are."""
    rows = vectors_by_id(out, output_format) if any((out / "rows").glob("part-*.parquet")) else []
    failures = failed_ids(out)
    ids = [sample_id for sample_id, _ in rows] + failures
    assert len(ids) == len(set(ids))
    assert all(vector == [float(int(name) + k) for k in range(16)] for name, vector in rows)
    assert all(name.endswith("3") for name in failures)
    if complete:
        assert set(ids) == {str(i) for i in range(count)}
    return len(ids)


@pytest.mark.parametrize("output_format", ["parquet", "npy"])
def test_killed_at_random_moments_no_row_is_lost_or_written_twice(tmp_path, output_format):
    moments = random.Random(7)
    counts = [0]
    for _ in range(5):
        command = [sys.executable, WRITER, tmp_path, output_format, str(COUNT)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            opened = process.stdout.readline().split()
            if opened:
                assert int(opened[1]) == counts[-1]
                time.sleep(moments.uniform(0, 0.2))
            process.send_signal(signal.SIGKILL)
        counts.append(check(tmp_path, output_format, COUNT, complete=False))
    assert counts == sorted(counts)
    assert counts[-1] > 0
    last = subprocess.run([sys.executable, WRITER, tmp_path, output_format, str(COUNT)], check=False)
    assert last.returncode == 0
    check(tmp_path, output_format, COUNT, complete=True)
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["counts"]["rows"] + record["counts"]["failures"] == COUNT
    assert not [name for name in os.listdir(tmp_path / "rows") if name.startswith(".")]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 kB; needs the right to mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("output_format", ["parquet", "npy"])
def test_a_full_disk_stops_the_run_and_nothing_is_lost_once_there_is_space(small_disk, output_format):
    out = small_disk / "out"
    command = [sys.executable, WRITER, out, output_format, str(COUNT)]
    full = subprocess.run(command, capture_output=True, text=True)
    assert full.returncode == 1
    assert f"VdaliError: Cannot write {out}" in full.stderr
    assert "No space left on device. Free some space, then run the same command again" in full.stderr
    done = check(out, output_format, COUNT, complete=False)
    assert PART_ROWS <= done < COUNT
    subprocess.run(["mount", "-o", "remount,size=32m", small_disk], check=True)
    resumed = subprocess.run(command, capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout == f"opened {done}\n"
    check(out, output_format, COUNT, complete=True)


@pytest.mark.parametrize("output_format", ["parquet", "npy"])
def test_a_part_that_cannot_be_written_leaves_nothing_behind_and_is_written_later(tmp_path, output_format):
    def limit_file_size() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    command = [sys.executable, WRITER, tmp_path, output_format, "200"]
    failed = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit_file_size)
    assert failed.returncode == 1
    assert "VdaliError: Cannot write" in failed.stderr
    assert "File too large. Free some space" in failed.stderr
    assert check(tmp_path, output_format, 200, complete=False) == 0
    assert os.listdir(tmp_path / "rows") == []
    assert subprocess.run(command).returncode == 0
    check(tmp_path, output_format, 200, complete=True)
